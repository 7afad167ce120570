"""The rubric's vocabulary: English and clinical studies. It holds no function and no task's data."""

import re
from typing import Literal

Kind = Literal["mean", "proportion", "time"]
"""The kind of value that an outcome measures; it determines the statistical tests that fit."""

_STOP = """
a an the and or but nor of in on at to for from by with without within into than then as is are was were be been
being am do does did can could may might will would shall should has have had having not no it its this that these
those there their they them he she his her we our you your i who whom which what when where why how if whether both
each per vs versus via between among during after before over under about all any more most other some such only own
same so too very just also either neither while because
"""
_GENERIC = """
lower higher low high reduce reduced reduces reducing reduction decrease decreased decreases increase increased
increases increasing raise raised raises rise improve improved improves improvement improving change changed changes
affect affects effect effects effective effectiveness efficacious efficacy useful helpful better worse good best
associated association associate related relation relationship correlate correlated link linked predict predicts
prediction influence influences impact cause caused causes lead compare compared comparison given give gives use
used using uses treat treated treatment receive received people patient patients participant participants person
persons subject subjects group groups study trial new role value necessary need needed possible important
significant significantly significance different difference differ evidence results result shows show shown mean
average baseline primary measured measure rate rates score scores level levels index frequency number proportion
percentage incidence amount intervention interventions programme program procedure method approach measurement
setting elevate elevated enhance enhanced diminish boost cut lessen asked found borderline opposite inconclusive
conflicting
"""
STOP_WORDS = frozenset(_STOP.split())
GENERIC_WORDS = frozenset(_GENERIC.split())
"""Words for directions, and words common to all questions. They do not say what a text is about."""


def _any(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE)


CONCEPTS: dict[str, re.Pattern[str]] = {
    "pain": _any(r"\bpain", "analges"),
    "fatigue": _any("fatigue", "tired"),
    "anxiety": _any("anxi", r"\bnervous(?:ness)?\b"),
    "depression": _any("depressi", "low mood"),
    "memory": _any(r"\bmemory", r"\brecall\b", "cogniti"),
    "quality of life": _any("quality[- ]of[- ]life", "well-?being"),
    "disability": _any("disabilit", "daily function", "activities of daily"),
    "cough": _any("cough"),
    "blood pressure": _any("blood pressure", "systolic", "diastolic"),
    "heart rate": _any("heart rate", r"\bpulse\b"),
    "weight": _any("body weight", r"weight (?:loss|gain)", r"\bmass (?:at|on)", "body mass"),
    "strength": _any(r"\bgrip", "hand force", "force of the hand", "muscle strength"),
    "walking": _any(r"\bwalk", "gait", r"\bpace over"),
    "bone": _any(r"\bbone (?:mineral )?density", "mineral content of bone"),
    "glucose": _any("glucose", "blood sugar", "hba1c", "glyca?emi"),
    "lipids": _any("cholesterol", "lipid"),
    "haemoglobin": _any("ha?emoglobin", "red pigment"),
    "iron": _any("ferritin", "iron stores"),
    "kidney function": _any("creatinine", "kidney waste", "renal function", "kidney function"),
    "inflammation": _any("c-reactive", "inflammat(?:ion|ory) marker", r"\bcrp\b"),
    "sleep": _any(r"\bsleep", r"\bslept", "nightly rest"),
    "seizures": _any("seizure", r"\bfits\b"),
    "attacks": _any(r"\battack (?:frequency|rate)", "flare-?ups?", "exacerbation"),
    "stay": _any(
        "hospital stay", r"length of (?:stay|admission|hospital)", r"duration of (?:stay|admission)", "bed days"
    ),
    "readmission": _any("readmi", "rehospitali", r"return to (?:the )?hospital", r"second stays? in hospital"),
    "relapse": _any("relaps", "recurren", "return of the disease"),
    "remission": _any("remission", r"fre(?:e of|edom from) (?:disease|symptom)"),
    "infection": _any("infecti", r"\binfected\b"),
    "falls": _any(r"\bfalls?\b(?! (?:in|of)\b)", r"\bfallen\b", r"\bfell\b", r"\btumbles?\b"),
    "adherence": _any("adheren", "complian", "doses taken"),
    "nausea": _any("nausea", "vomit", "feeling sick"),
    "transfusion": _any("transfus", "given blood", "donor blood"),
    "survival": _any("mortality", r"\bdeath", "surviv", r"\bdied\b", r"\balive\b"),
    "healing": _any("healing", "wound closure"),
    "lung function": _any("lung function", "expiratory", "spiromet", r"\bfev"),
    "stroke": _any(r"\bstroke"),
    "bleeding": _any("bleed", "ha?emorrhag"),
    "safety": _any(r"\bsafe(?:ty|ly)?\b", "complicat", "adverse", r"\bharm", "toxic", "dangerous"),
    "cost": _any(r"\bcosts?\b", "cost-effective"),
}
"""Outcomes with all their names, so that 'length of admission' matches 'hospital stay'."""

PLACEHOLDER = _any(
    r"n/?a|none|nil|null|tb[da]|todo",
    r"to be (?:determined|decided|defined|confirmed)|unknown|unspecified",
    r"not (?:applicable|specified|stated|given|known)|various|something|anything",
    r"stuff|etc|same(?: as (?:above|before))?",
    r"see above|as (?:above|appropriate|needed)|standard|default|placeholder",
    r"example|text|string|phrase|lorem ipsum.*",
    r"(?:the |an? )?(?:design|population|intervention|comparator|outcome|analysis|safeguards?)",
    r"(?:the |an? )?(?:field|value|treatment|drug)",
)
"""Text that, alone in a field, means that nobody filled it in; so do the fields' names."""

INSTRUCTION = _any(
    r"(?<!heart )(?<!respiratory )\b(?:give|award|grant|assign|rate|score|grade|mark) "
    r"(?:this(?! (?:day|week|month|year|visit|time)\b)|it|me|us|full|perfect|maximum|max|top|highest)\b",
    r"\b(?:give|award|grant|assign|rate|score|grade|mark) the (?:protocol|answer|hypothesis|study)\b",
    r"\b(?:award|assign|score|rate|give) (?:an? )?(?:1\.0\b|10 ?/|100 ?%(?! (?:\w+ )?(?:oxygen|o2|of)\b))",
    r"\b(?:full|top|perfect|maximum|max|(?:highest|best) possible) (?:marks?|scores?|points|ratings?|grades?|credit)\b",
    r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instruction|previous|above|prior|prompt|rules?|rubric|criteri)",
    r"\b(?:dear|as an?|you are (?:an?|the)|note to(?: the)?|attention) (?:judge|grader|reviewer|evaluator|ai|model)\b",
    r"\b(?:judge|grader|evaluator|reviewer|examiner)s?\b.{0,20}"
    r"(?:\b(?:should|must)\b(?! (?:be|remain|stay) (?:\w+ )?(?:blind|mask|unaware|independent|trained))|\bplease\b|:)",
    r"\b(?:rubric|language model|system prompt)\b",
    r"\b(?:novelty|feasibility|impact|clarity|groundedness|efficiency)\W{0,4}(?:=|:|\d)",
    r"</?[a-z_|]+>|\b10 ?/ ?10\b",
)
"""Text that speaks to its grader instead of describing a study."""

OUTCOME_KINDS: dict[Kind, re.Pattern[str]] = {
    "proportion": _any(
        r"(?<!heart )(?<!respiratory )\brates?\b|proportion|incidence|prevalence",
        r"\bshare\b|percentage|\brisk|mortality",
        r"death|remission|relaps|recurren|readmi|return to|infecti|nausea|vomit",
        r"respon[sd]|\bcure|success|complication",
        r"adheren|\bevents?\b|occurrence|transfus|\bfell\b|\bfalls?\b|uptake|use of",
        r"attendance|number of (?:people|patients)",
    ),
    "mean": _any(
        r"score|scale|level|pressure|duration|length|\bstay\b|distance|weight",
        r"\bmean\b|average|volume|glucose|sugar",
        r"strength|\bforce|count|concentration|quality|\bindex|\bcosts?\b",
        r"\bhours|\bdays|intensity|rating|frequency",
        r"function|ferritin|protein|sleep|\btime\b|marker|stores|heart rate",
        r"respiratory rate|thickness|density|\bsize\b",
        r"\bmass\b|pain|fatigue|anxiety|depress|distress|temperature|knowledge|speed|\bpace\b",
    ),
    "time": _any(r"surviv|mortality|\btime (?:to|until)|healing time|hazard|days (?:to|until)"),
}

TESTS: dict[Kind, re.Pattern[str]] = {
    "mean": _any(
        r"\bt[- ]?tests?\b|\bancova\b|\banova\b",
        r"analysis of (?:co)?variance|mann|wilcoxon|rank[- ]sum|kruskal",
        r"linear (?:mixed|regression|model)|mixed[- ](?:effects?|model|linear)|repeated measures",
        r"difference in means|mean difference|poisson|negative binomial",
    ),
    "proportion": _any(
        r"chi[- ]?squared?|χ|fisher|logistic|risk (?:ratio|difference)",
        r"relative risk|odds ratio|\bz[- ]test|mcnemar",
        r"mantel|proportions|log-?binomial|poisson|negative binomial",
    ),
    "time": _any(r"log[- ]?rank|\bcox\b|kaplan|hazard|survival (?:analysis|model|curve)"),
}
"""Statistical tests by the kind of outcome that they fit (any introductory biostatistics text)."""

OTHER_TESTS = _any(
    r"regression|bayesian|mixed model|correlation|permutation|bootstrap",
    r"sensitivity and specificity|\broc\b|kappa",
    r"meta-analysis|\bgee\b|estimating equations|confidence interval",
)

RANDOMISED = _any(r"randomi[sz]|random allocation|by lot\b")
NAMED_DESIGN = _any(
    r"randomi[sz]|cohort|case[- ]control|cross-?over|cross[- ]sectional",
    r"controlled|before[- ]and[- ]after|factorial",
    r"stepped[- ]wedge|prospective|retrospective|parallel|\btrial\b",
    r"registry|case series|interrupted time",
)
DESIGN_DETAIL = _any(
    r"blind|mask|parallel|cross-?over|multi-?cent|centres|centers|cluster",
    r"factorial|stratif|allocation|two-arm|three-arm",
    r"match|adjust|prospective|intention|placebo-controlled|non-?inferiority|superiority|pragmatic|concealed|adaptive",
)
USUAL_COMPARATOR = _any(
    r"placebo|usual care|standard|sham|control|no (?:treatment|intervention)|wait",
    r"routine|conventional|current practice|alone",
)
TRAIT = _any(
    r"\bvariant|carrier|genotype|allele|mutation|polymorphism|smok(?:ing|ers)|alcohol|\bage\b|\bsex\b|gender|exposure",
)
"""Exposures that cannot be assigned to people, so that a cohort is the best design."""
FOLLOW_UP = re.compile(r"\b\d+[- ](?:hour|day|week|month|year)s?\b", re.IGNORECASE)
THRESHOLD = _any(
    r"\b(?:at least|minimum|minimal(?:ly)?|clinically|margin|power|alpha|threshold)\b",
    r"\b(?:difference|reduction|increase|change) of\b",
    r"\b\d+ ?% (?:power|lower|higher|fewer|more|relative|absolute)",
)

CONSENT = _any(r"consent|\bassent|ethic|\birb\b|review board")
MONITORING = _any(
    r"monitor|adverse|safety (?:board|visit|review|lab)|\bdsmb\b", r"surveillance|\bchecks?\b|checked|visits"
)
STOPPING = _any(r"\bstop|withdraw|discontinu|\bhalt|rescue|terminat|interim")
SAFEGUARDS = (CONSENT, MONITORING, STOPPING)

HARM = _any(
    r"\b(?:without|no|lacking) (?:any |informed |written |patient |patients' |prior )*consent\b(?! \w+ withdrawn)",
    r"\b(?<!no )(?<!without )decepti|\bdeceiv",
    r"(?<!non-)(?<!non)(?<!sub)(?<!sub-)\blethal\b|\bfatal dose|coerc(?:e|ing|ion of)",
    r"\b(?:not|never|without) (?:be(?:ing)? )?(?:told|informed|informing|telling)\b"
    r"(?![^.;]{0,30}\b(?:groups?|arms?|allocat|assign))|\bagainst their will\b",
)
NOT_WITHOUT = _any(r"\b(?:no|not|never|nobody|none|cannot)\b(?:[ -]+(?!and\b|but\b|or\b)\w+){0,4}[ -]+without\b")
"""A double negation, as in 'no participant is enrolled without consent'."""
SEVERE = _any(
    r"sepsis|septic|\bstroke|cancer|carcinoma|tumou?r|leuk|lymphoma",
    r"myocardial infarction|heart attack|cardiac arrest",
    r"heart failure|status epilepticus|severe|critical|life-threatening|pneumonia",
    r"meningitis|\btrauma|shock|respiratory failure",
    r"acute (?:coronary|liver|kidney|renal)|pulmonary embol|\bhiv\b|transplant|burns|suicid|anaphyla",
)
WITHHOLDING = _any(
    r"placebo|no (?:treatment|intervention|therapy|care)|nothing", r"untreated|sham|waiting|wait-?list|watchful"
)
RESCUE = _any(
    r"rescue|standard|usual|add-?on|added to|background|alongside", r"in addition|plus|routine|on top of|best available"
)

ASKS_LOWER = _any(r"\b(?:lower|reduc|decreas|less|fewer|prevent|diminish|shorten)")
ASKS_HIGHER = _any(r"\b(?:higher|rais|increas|elevat|more|improv|enhanc|prolong)")
"""The direction that a question asks about."""

BEYOND: dict[str, re.Pattern[str]] = {
    "subgroup": _any(r"subgroup|stratif|by (?:sex|age|severity)|effect modif|interaction"),
    "dose": _any(
        r"\bdos(?:e|es|ing|age)\b|\b\d+(?:\.\d+)? ?mg\b|titrat", r"twice (?:daily|a day|weekly)|intensity levels?"
    ),
    "follow-up": _any(r"\b\d+[- ](?:week|month|year)s?\b|follow-?up|long-term"),
    "mechanism": _any(r"mechanis|biomarker|mediat(?:ion|or)|imaging|genotyp|plasma|pharmacokinetic|\bserum\b|biops"),
    "design": _any(
        r"cross-?over|factorial|adaptive|stepped|non-?inferiority|pragmatic", r"multi-?cent|cluster|regist|replicat"
    ),
    "measure": _any(r"patient-reported|quality of life|\bcosts?\b|daily diary|wearable|actigraph"),
}
"""Ways in which a protocol may go beyond what was reported."""
