"""Bring pipeline("translation", ...) back to transformers 5."""


def register() -> None:
    """
    Make `pipeline("translation", ...)` and `pipeline("translation_en_to_de", ...)` work for encoder-decoder models.

    Transformers 5 removed the task. Calling this again, or where something else has registered the task already,
    changes nothing.
    """
    from transformers import AutoModelForSeq2SeqLM, pipelines

    from .models.pipeline_translation import PAIR_TASK, TranslationPipeline

    # Later releases refuse the removed tasks by name before they look into the registry
    getattr(pipelines, "REMOVED_TASKS", {}).pop("translation", None)
    registry = pipelines.PIPELINE_REGISTRY
    if "translation" in registry.supported_tasks:
        return
    registry.register_pipeline("translation", TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    # Without this entry a call that names no model fails with a bare KeyError
    registry.supported_tasks["translation"]["default"] = {}

    check_task = registry.check_task

    def check_translation_task(task: str):
        """The registry's check_task, which since transformers 5 knows no tasks with languages in their names."""
        pair = PAIR_TASK.fullmatch(task)
        if pair is None:
            return check_task(task)
        return "translation", registry.supported_tasks["translation"], (pair["source"], pair["target"])

    registry.check_task = check_translation_task
