"""Answers of the live services, as their documentation shows them, and a clock for their retries."""

from collections.abc import Callable

from agents.tools.live.go import QuickGO
from agents.tools.live.http import LiveHttp
from agents.tools.live.proteins import UniProt
from agents.tools.live.pubmed import PubMed
from agents.tools.live.tavily import Tavily
from agents.tools.live.trials import ClinicalTrials
from chimera.core.types import Brief

KEY = "secret-key-4711"
BRIEF = Brief("99999999", "Is this another question altogether?", ())

TAVILY = {
    "query": "zinc",
    "answer": None,
    "results": [
        {
            "title": "Zinc for <b>colds</b>",
            "url": "https://a.example/1",
            "content": "<p>Zinc&nbsp;helped (p &lt; 0.05).</p>",
        },
        {"title": "Empty page", "url": "https://a.example/2", "content": "  "},
    ],
}
PUBMED_IDS = {"header": {"type": "esearch"}, "esearchresult": {"count": "2", "idlist": ["222", "111"]}}
PUBMED_XML = """<?xml version="1.0" ?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" "https://dtd.nlm.nih.gov/pubmed.dtd">
<PubmedArticleSet>
<PubmedArticle><MedlineCitation><PMID Version="1">111</PMID><Article>
<ArticleTitle>Zinc and <i>rhinovirus</i>.</ArticleTitle>
<Abstract><AbstractText>Plain text &amp; H<sub>2</sub>O.</AbstractText></Abstract></Article>
<CommentsCorrectionsList><CommentsCorrections RefType="CommentOn"><PMID Version="1">777</PMID></CommentsCorrections>
<CommentsCorrections RefType="Cites"><PMID Version="1">888</PMID></CommentsCorrections>
<CommentsCorrections RefType="ErratumIn"><RefSource>J Zinc. 2012</RefSource></CommentsCorrections>
</CommentsCorrectionsList></MedlineCitation>
<PubmedData><ArticleIdList><ArticleId IdType="doi">10.1/zinc</ArticleId></ArticleIdList></PubmedData></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID Version="2">222</PMID><Article>
<ArticleTitle>Zinc trial</ArticleTitle>
<Abstract><AbstractText Label="METHODS">Ninety adults.</AbstractText>
<AbstractText Label="CONCLUSIONS">Zinc shortens colds.</AbstractText></Abstract></Article></MedlineCitation>
</PubmedArticle><PubmedArticle><MedlineCitation><PMID>333</PMID>
<Article><ArticleTitle>No abstract</ArticleTitle></Article>
</MedlineCitation></PubmedArticle>
</PubmedArticleSet>"""
PUBMED_RECORDS = """<PubmedArticleSet>
<PubmedArticle><MedlineCitation><PMID>1</PMID><Article><ArticleTitle>Zinc for colds</ArticleTitle>
<Abstract><AbstractText>Zinc cured all colds.</AbstractText></Abstract>
<PublicationTypeList><PublicationType>Retracted Publication</PublicationType></PublicationTypeList></Article>
</MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>2</PMID><Article><ArticleTitle>Zinc again</ArticleTitle>
<Abstract><AbstractText>Zinc cured most colds.</AbstractText></Abstract></Article><CommentsCorrectionsList>
<CommentsCorrections RefType="ExpressionOfConcernIn"><PMID>9</PMID></CommentsCorrections></CommentsCorrectionsList>
</MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>3</PMID><Article><ArticleTitle>WITHDRAWN: Zinc once more</ArticleTitle>
<Abstract><AbstractText>Zinc cured some colds.</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>4</PMID><Article><ArticleTitle>El zinc</ArticleTitle></Article>
<OtherAbstract Language="spa"><AbstractText>El zinc.</AbstractText></OtherAbstract>
<OtherAbstract Language="eng"><AbstractText>Zinc in 10<sup>6</sup> cells.</AbstractText></OtherAbstract>
<CommentsCorrectionsList><CommentsCorrections RefType="RetractionOf"><PMID>8</PMID></CommentsCorrections>
</CommentsCorrectionsList></MedlineCitation></PubmedArticle>
<PubmedBookArticle><BookDocument><PMID>5</PMID><Book><BookTitle>Minerals</BookTitle></Book>
<ArticleTitle>Zinc and the immune system</ArticleTitle>
<Abstract><AbstractText>Zinc is an element.</AbstractText></Abstract></BookDocument></PubmedBookArticle>
</PubmedArticleSet>"""
"""Retracted, under concern, withdrawn by its title; an abstract beside the article; a chapter of a book."""
TRIALS = {
    "studies": [
        {
            "protocolSection": {
                "identificationModule": {"nctId": "NCT00000001", "briefTitle": "Zinc in Colds"},
                "statusModule": {"overallStatus": "COMPLETED"},
                "descriptionModule": {"briefSummary": "Does zinc help?\nWe will see."},
                "conditionsModule": {"conditions": ["Common Cold"]},
                "designModule": {
                    "studyType": "INTERVENTIONAL",
                    "phases": ["PHASE3"],
                    "designInfo": {"allocation": "RANDOMIZED"},
                    "enrollmentInfo": {"count": 90, "type": "ACTUAL"},
                },
                "armsInterventionsModule": {"interventions": [{"type": "DRUG", "name": "Zinc acetate"}]},
                "outcomesModule": {"primaryOutcomes": [{"measure": "Days with symptoms", "timeFrame": "14 days"}]},
                "referencesModule": {
                    "references": [{"pmid": "222", "type": "RESULT", "citation": "Doe J. Zinc trial."}]
                },
            },
            "hasResults": False,
        },
        {"protocolSection": {"identificationModule": {"nctId": "NCT00000002"}}},
    ]
}
UNIPROT = {
    "results": [
        {
            "primaryAccession": "P04637",
            "organism": {"scientificName": "Homo sapiens"},
            "proteinDescription": {"recommendedName": {"fullName": {"value": "Cellular tumor antigen p53"}}},
            "genes": [{"geneName": {"value": "TP53"}}],
            "comments": [{"commentType": "FUNCTION", "texts": [{"value": "Stops the cell cycle (PubMed:111)"}]}],
        }
    ]
}
QUICKGO = {
    "numberOfHits": 2,
    "results": [
        {"id": "GO:0000009", "name": "old", "isObsolete": True},
        {
            "id": "GO:0006915",
            "name": "apoptotic process",
            "aspect": "biological_process",
            "definition": {"text": "Orderly cell death."},
            "synonyms": [{"name": "apoptosis", "type": "narrow"}],
        },
    ],
}


class Clock:
    """Stands in for waiting: remembers how long a tool would have slept."""

    def __init__(self):
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)


def live_http(clock=None, **options):
    return LiveHttp(**{"timeout_s": 5.0, "retries": 2, "sleep": (clock or Clock()).sleep, **options})


SERVICES: dict[str, Callable[[LiveHttp, str], Callable]] = {
    "Tavily": lambda http, url: Tavily(http, 2, KEY, url).literature_search,
    "PubMed": lambda http, url: PubMed(http, 2, KEY, url).literature_search,
    "ClinicalTrials.gov": lambda http, url: ClinicalTrials(http, 2, url).clinical_trials,
    "UniProt": lambda http, url: UniProt(http, 2, url).protein_lookup,
    "QuickGO": lambda http, url: QuickGO(http, 2, url).gene_ontology,
}
