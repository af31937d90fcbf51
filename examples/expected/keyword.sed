/^keyword workspace/d
