"""Rules that find doubts about a run. A doubt is a reason why the result may be wrong, with the step to look at."""
