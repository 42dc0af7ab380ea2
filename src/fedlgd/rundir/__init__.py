"""The run folder, defined once and read without torch.

`manifest` is what a run knows, `records` what each round did, `results` what attacks and the analysis found, and
`contact_sheet` its pictures. `read` reads all of a folder. `sweep` names the folders of swept settings.
"""
