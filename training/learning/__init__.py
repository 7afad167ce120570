"""From traces to the data that algorithms need. Read `adapter` first."""
