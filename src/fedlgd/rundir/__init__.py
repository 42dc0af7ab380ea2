"""The run folder, defined once and read without torch.

`manifest` is what a run knows, `records` what each round did, `results` what attacks and the analysis found, and
its pictures. `disclosure` compares what a method declares with what its sites sent and read. `order` is that of the
methods of a comparison, `decision` what their scores say about joining, and `intervals` how sure a score is. `read`
reads all of a folder.
"""
