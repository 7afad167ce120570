"""Model servers: embedded, endpoint and rubric, all behind the OpenAI chat API."""
