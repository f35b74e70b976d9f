"""What the demo draws and expects to read back."""

LINES = (
    "Headrace",
    "Water wheel",
    "Mill Lane 7",
    "Gate B42",
    "2026-11-20",
    "12:45",
    "Invoice 48217",
    "SLO 99.9 %",
    "Stage 2 of 3",
    "Total: 1,250.00",
    "hello, world",
    "stage by stage",
)
