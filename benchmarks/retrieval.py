"""How often the local literature index finds a task's own abstract when the query is the task's question.

python -m benchmarks.retrieval [--tiny] [generated | hub | FILE ...]
"""

import argparse
import time
from collections.abc import Sequence

from agents.tools.literature import LiteratureIndex
from chimera.config.sections.data import DataConfig
from chimera.data.tasks import load

RANKS = (1, 5, 10)


def recall(index: LiteratureIndex, questions: Sequence[tuple[str, str]]) -> dict[int, float]:
    """Share of (id, question) pairs whose id is among the first k results, for each k in `RANKS`."""
    hits = dict.fromkeys(RANKS, 0)
    for id_, question in questions:
        ids = [passage.id for passage in index.search(question, max(RANKS))]
        for rank in RANKS:
            hits[rank] += id_ in ids[:rank]
    return {rank: count / len(questions) for rank, count in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["generated"], help="generated, hub, or files of PubMedQA")
    parser.add_argument("--tiny", action="store_true", help="40 generated tasks: shows that it runs")
    options = parser.parse_args()
    for path in options.paths:
        dataset = load(DataConfig(path=path, size=40) if options.tiny else DataConfig(path=path))
        documents = dataset.documents()
        started = time.perf_counter()
        index = LiteratureIndex(documents)
        built = time.perf_counter()
        for document in documents:
            index.search(document.title, 1)
        searched = time.perf_counter()
        shares = recall(index, [(document.id, document.title) for document in documents])
        print(dataset.describe())
        print("  " + "   ".join(f"recall@{rank} {share:.1%}" for rank, share in shares.items()))
        per_query = (searched - built) / len(documents) * 1000
        print(f"  {len(documents)} abstracts indexed in {built - started:.2f} s, {per_query:.2f} ms per search")


if __name__ == "__main__":
    main()
