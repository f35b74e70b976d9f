"""What pooled pipelines are compared with: no partitioning, and DART-r's replicated pairs."""
