"""Live back ends of the tools: PubMed, Tavily, ClinicalTrials.gov, UniProt, QuickGO."""
