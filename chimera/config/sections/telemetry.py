"""Settings of OpenTelemetry out."""

import re
from typing import Annotated

from pydantic import Field, field_validator

from chimera.config.loader import ConfigSection, When
from chimera.config.sections.models import VariableName

SENT = When.set("otlp_endpoint")


class TelemetryConfig(ConfigSection):
    """Sends recorded rollouts as OpenTelemetry spans (GenAI conventions) to a collector, beside the run."""

    otlp_endpoint: str | None = Field(
        default=None,
        description="base address of an OTLP/HTTP collector, such as http://127.0.0.1:6006 (Phoenix); its path "
        "/v1/traces is added; without it nothing is sent",
    )
    content: Annotated[bool, SENT] = Field(
        default=False, description="also send what models and tools read and wrote, not only names, times and figures"
    )
    headers_env: Annotated[VariableName | None, SENT] = Field(
        default=None,
        description="environment variable (or line of .env) with the collector's headers, as "
        "Authorization=Bearer ...,name=value",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", value):
            raise ValueError(
                "must be an http(s) address without user, password or query, such as http://127.0.0.1:4318"
            )
        return value
