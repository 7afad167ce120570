"""Writes the example data: an own CSV with yes, no and maybe, and a JSONL file in MedQA's form with options A to E.

    python -m examples.make_data

Drugs, diseases, studies and patients are invented. `configs/own_csv.yaml` and `configs/medqa.yaml` read the files.
"""

import csv
import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent / "data"
ROWS = 60
DRUGS = ("Veldorin", "Quastimab", "Torvexil", "Ansalid", "Pelonide", "Mirvacet")
DISEASES = ("Hartwell fever", "Ossen syndrome", "Brindle neuritis", "Calder anaemia", "Lowry ataxia")
OUTCOMES = ("pain score", "relapse rate", "hospital stay", "fatigue score")
ENZYMES = ("kelotransferase", "ossenase", "brindle kinase", "calderin", "lowrase", "hartwell peptidase")
VERDICTS = ("yes", "no", "maybe", "yes", "no")


def trials(rng: random.Random) -> list[dict[str, str]]:
    """Invented trials, whose verdict follows from the p-value of their summary."""
    rows: list[dict[str, str]] = []
    for number in range(ROWS):
        drug, disease, outcome = DRUGS[number % 6], DISEASES[number % 5], OUTCOMES[number // 30 + 2 * (number % 2)]
        verdict, people = VERDICTS[rng.randrange(5)], rng.randrange(60, 400)
        p_value = {"yes": "p=0.01", "no": "p=0.62", "maybe": "p=0.07"}[verdict]
        change = {"yes": "was lower", "no": "was the same", "maybe": "tended to be lower"}[verdict]
        rows.append(
            {
                "trial": f"T{number:03d}",
                "question": f"Does {drug} lower the {outcome} in adults with {disease} (trial {number})?",
                "summary": f"In trial {number}, {people} adults with {disease} received {drug} or placebo. "
                f"The {outcome} {change} with {drug} than with placebo ({p_value}).",
                "verdict": verdict,
                "phase": str(2 + number % 3 // 2),
                "year": str(2001 + number % 20),
            }
        )
    return rows


def exam(rng: random.Random) -> list[dict[str, object]]:
    """Invented exam questions; the text says which enzyme is missing in which disease."""
    rows: list[dict[str, object]] = []
    for number in range(ROWS):
        drug, disease = DRUGS[number % 6], DISEASES[number % 5]
        options = dict(zip("ABCDE", rng.sample(ENZYMES, 5), strict=True))
        right = rng.choice("ABCDE")
        age = 20 + number
        rows.append(
            {
                "question": f"A {age}-year-old patient with {disease} does not respond to {drug}. In this "
                f"invented form of the disease the liver makes no {options[right]}, and {drug} needs it. "
                "Which enzyme is missing?",
                "options": options,
                "answer_idx": right,
                "answer": options[right],
                "meta_info": "invented",
            }
        )
    return rows


def main() -> None:
    """Write both files."""
    rows = trials(random.Random(0))
    with (FOLDER / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = (json.dumps(row) + "\n" for row in exam(random.Random(0)))
    (FOLDER / "medqa.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
