"""Results of pipelines on data whose changes are known: real trainings, several seeds, dated reports with pictures."""
