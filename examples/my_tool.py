"""A tool of your own: any LangChain tool, with any number of typed arguments. Models read its docstring.

roles:
  Geneticist: {tools: [literature_search, "examples.my_tool:risk_difference"]}
"""

from math import sqrt
from typing import Annotated

from langchain_core.tools import tool
from pydantic import Field

Percent = Annotated[float, Field(ge=0, le=100)]


@tool(parse_docstring=True)
def risk_difference(treated: Percent, control: Percent, participants: Annotated[int, Field(ge=4)]) -> str:
    """Compare the event rates of two equal arms: difference in percentage points with its 95 % interval.

    Args:
        treated: Event rate with the treatment, in percent.
        control: Event rate without it, in percent.
        participants: Participants in both arms together.
    """
    share, other = treated / 100, control / 100
    difference = share - other
    error = sqrt((share * (1 - share) + other * (1 - other)) / (participants / 2))
    low, high = (100 * (difference + side * 1.96 * error) for side in (-1, 1))
    return f"The rates differ by {100 * difference:+.1f} percentage points (95 % interval {low:+.1f} to {high:+.1f})."
