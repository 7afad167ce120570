"""The words that generated tasks are made of: endpoints, populations, conditions, invented names.

Names of drugs, programmes and genes are made from syllables, so that nearly every question is unique and no real
product is named. No endpoint's name or synonym occurs inside another one's.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

Kind = Literal["drug", "behaviour", "gene"]
"""What is studied: an invented drug, a behavioural programme, or a gene variant (an exposure, not a therapy)."""

KINDS: tuple[Kind, ...] = ("drug", "behaviour", "gene")


@dataclass(frozen=True, slots=True)
class StudyEndpoint:
    """An outcome: its name in abstracts, a synonym for hard questions, and its usual values.

    `typical` and `spread` (standard deviation of one participant) are in `unit`; shares are percentages and have no
    spread of their own. `decimals` is the precision that values are printed with.
    """

    name: str
    synonym: str
    typical: float
    spread: float
    unit: str
    decimals: int = 0


def share(name: str, synonym: str, typical: float) -> StudyEndpoint:
    """An endpoint that is the percentage of participants with an event."""
    return StudyEndpoint(name, synonym, typical, 0.0, "%")


ENDPOINTS: tuple[StudyEndpoint, ...] = (
    StudyEndpoint("pain score", "intensity of pain", 46, 17, "points"),
    StudyEndpoint("fatigue score", "tiredness", 38, 14, "points"),
    StudyEndpoint("anxiety score", "nervousness", 33, 12, "points"),
    StudyEndpoint("depression score", "low mood", 27, 10, "points"),
    StudyEndpoint("memory score", "recall of word lists", 52, 15, "points"),
    StudyEndpoint("well-being score", "quality of life", 61, 18, "points"),
    StudyEndpoint("disability score", "loss of daily function", 44, 16, "points"),
    StudyEndpoint("cough score", "severity of coughing", 31, 11, "points"),
    StudyEndpoint("systolic pressure", "upper blood pressure", 142, 15, "mmHg"),
    StudyEndpoint("heart rate", "pulse", 78, 11, "bpm"),
    StudyEndpoint("body weight", "mass on the scales", 81, 13, "kg"),
    StudyEndpoint("grip strength", "force of the hand", 29, 8, "kg"),
    StudyEndpoint("walking speed", "pace over ten metres", 63, 17, "m/min"),
    StudyEndpoint("bone density", "mineral content of bone", 91, 13, "units"),
    StudyEndpoint("fasting glucose", "morning blood sugar", 7.6, 1.7, "mmol/L", 1),
    StudyEndpoint("cholesterol level", "blood lipids", 5.4, 1.2, "mmol/L", 1),
    StudyEndpoint("haemoglobin level", "red pigment of the blood", 121, 15, "g/L"),
    StudyEndpoint("ferritin level", "iron stores", 84, 29, "ug/L"),
    StudyEndpoint("creatinine level", "kidney waste marker", 97, 24, "umol/L"),
    StudyEndpoint("inflammation marker", "C-reactive protein", 17, 7, "mg/L"),
    StudyEndpoint("sleep time", "nightly rest", 6.3, 1.3, "h", 1),
    StudyEndpoint("seizure frequency", "number of fits", 5.6, 2.4, "per month", 1),
    StudyEndpoint("attack frequency", "number of flare-ups", 4.2, 1.9, "per month", 1),
    share("relapse rate", "return of the disease", 34),
    share("readmission rate", "second stays in hospital", 23),
    share("infection rate", "share of infected participants", 21),
    share("remission rate", "freedom from symptoms", 42),
    share("fall rate", "tumbles at home", 28),
    share("adherence rate", "doses taken as planned", 62),
    share("nausea rate", "feeling sick", 36),
    share("transfusion rate", "need for donor blood", 26),
    share("survival rate", "being alive at the end", 71),
)

CONDITIONS: tuple[str, ...] = (
    *("asthma", "migraine", "psoriasis", "epilepsy", "insomnia", "obesity", "sepsis", "eczema", "gout", "glaucoma"),
    *("angina", "cirrhosis", "lupus", "narcolepsy", "osteoporosis", "sarcoidosis", "endometriosis", "tinnitus"),
    *("heart failure", "hip fracture", "kidney disease", "knee arthritis", "back pain", "acute stroke", "lung cancer"),
    *(
        "breast cancer",
        "type 1 diabetes",
        "type 2 diabetes",
        "atrial fibrillation",
        "multiple sclerosis",
        "coeliac disease",
    ),
    *("Parkinson disease", "Crohn disease", "hepatitis B", "sickle cell disease", "cystic fibrosis", "head injury"),
)

GROUPS: tuple[str, ...] = (
    *("adults", "women", "men", "older people", "young adults", "outpatients", "inpatients", "smokers", "veterans"),
    *("shift workers", "rural residents", "city residents"),
)

ACTIVITIES: tuple[str, ...] = (
    *("walking", "music", "breathing", "dance", "balance", "stretching", "swimming", "relaxation", "gardening"),
    *("singing", "diet", "memory", "reminder", "mirror", "daylight", "sleep", "cycling", "handwriting", "coaching"),
)

CONTROLS: dict[Kind, tuple[str, ...]] = {
    "drug": ("placebo", "standard treatment", "delayed treatment"),
    "behaviour": ("usual care", "waiting list", "leaflet"),
    "gene": ("non-carriers",),
}

FIRST = (
    *("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu"),
    *("ne", "pi", "ro", "su", "ta", "ve", "wi", "xo", "yu", "za"),
)
MIDDLE = (
    *("lan", "bri", "mor", "tis", "ven", "dal", "kor", "pel", "rus", "nim"),
    *("fex", "gol", "hap", "jun", "qua", "sel", "tam", "vod", "wer", "zin"),
)
DRUG_ENDINGS = ("olix", "amet", "idor", "uvane", "opral", "ezin", "ilatol", "urexa", "abion", "yster")
PROGRAMME_ENDINGS = ("o", "a", "is", "um", "ey", "ane", "eth", "ory")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared, as named in questions (`name`) and in results (`group`, `control_group`)."""

    kind: Kind
    name: str
    comparator: str
    group: str
    control_group: str


def draw_subject(rng: Random, kind: Kind) -> Subject:
    """An invented drug, programme or gene variant with its comparison."""
    stem = rng.choice(FIRST) + rng.choice(MIDDLE)
    comparator = rng.choice(CONTROLS[kind])
    if kind == "gene":
        symbol = f"{stem.upper()}{rng.randint(1, 9)}"
        return Subject(kind, f"the {symbol} variant", comparator, f"{symbol} carriers", comparator)
    if kind == "drug":
        name = stem + rng.choice(DRUG_ENDINGS)
        return Subject(kind, name, comparator, f"the {name} group", f"the {comparator} group")
    word = (stem + rng.choice(PROGRAMME_ENDINGS)).capitalize()
    name = f"the {word} {rng.choice(ACTIVITIES)} programme"
    return Subject(kind, name, comparator, f"the {word} group", f"the {comparator} group")
