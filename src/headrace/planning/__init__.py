"""Problem -> PlanResult. One module per technique, baselines beside them."""
