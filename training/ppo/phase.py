"""PPO: roles learn online from the reward, through VeRL.

    for step in 1 .. steps:
        rollouts of tasks_per_step tasks, n of each, by the society with the current weights; or, with `states`,
        n answers of the current weights to each of so many recorded prompts      (training.ppo.sources)
        credit for each call of the roles; advantages; one update, by one process or several
                                                       (training.ppo.credit, training.ppo.engine, training.ppo.ranks)
        the new weights go live as <slot>@<phase>-<step>; checkpoint

A step with too few usable rollouts is skipped and counted, and the weights stay. A resumed run begins after the last
checkpoint and reads recorded rollouts from disk. From equal rollouts it learns equal weights, bit for bit.

With `ahead`, the next step's rollouts run while this one's update does; see `training.ppo.loop`.
"""

from typing import ClassVar

from chimera.config.roles import JUNIORS
from chimera.config.tree import Config
from chimera.core.errors import ConfigError
from chimera.data.tasks import Dataset
from chimera.run.policies import Part
from training.learning.base import Bench, Learned, PhasePlan
from training.learning.states import check_tasks, check_varied
from training.learning.values import check_reward, how_valued
from training.ppo.engine.advantages import GROUPED
from training.ppo.loop import PpoLoop
from training.ppo.verl.configuration import check_verl
from training.ppo.verl.settings import PpoSettings


class Ppo:
    """Online steps that update the weights of one slot."""

    Settings = PpoSettings
    part: ClassVar[Part | None] = "weights"

    def check(self, plan: PhasePlan, settings: PpoSettings, config: Config, dataset: Dataset) -> None:
        check_varied(plan, config, "learns from differences")
        if config.models[plan.slot].dtype != "float32":
            raise ConfigError(
                f"models.{plan.slot}.dtype={config.models[plan.slot].dtype}: {plan.name} compares the probabilities of "
                "float32 before and after an update, and these answers would come from others: set it to float32, or "
                "let an algorithm that needs no probabilities learn, such as rejection"
            )
        if settings.ahead:
            _check_ahead(plan, settings, config)
        if settings.credit == "counterfactual" and len({*plan.roles}.intersection(JUNIORS)) > 1:
            raise ConfigError(
                f"{plan.name}.credit=counterfactual plays one junior's work again, not that of those beside it, and "
                f"{plan.name} trains several: set {plan.name}.credit to calls, or {plan.name}.roles to one of them"
            )
        if settings.credit == "counterfactual" and config.models[plan.slot].kind == "vllm":
            raise ConfigError(
                f"{plan.name}.credit=counterfactual serves first weights beside those that learn, which vLLM cannot: "
                f"set {plan.name}.credit to calls, or models.{plan.slot}.kind to embedded"
            )
        if settings.start is not None:
            _check_start(plan, settings.start, config)
        if settings.adv_estimator in GROUPED and settings.n < 2:
            what = "answers to one prompt" if settings.states else "rollouts of one task"
            raise ConfigError(
                f"{plan.name}.n={settings.n}: {settings.adv_estimator} compares {what} with each other; "
                f"set {plan.name}.n to 2 or more, or {plan.name}.adv_estimator to gae or reinforce_plus_plus"
            )
        if settings.adv_estimator == "gae" and settings.critic_warmup >= settings.steps:
            raise ConfigError(
                f"{plan.name}.critic_warmup={settings.critic_warmup}: none of {plan.name}.steps={settings.steps} would "
                f"train more than the critic; set {plan.name}.critic_warmup to fewer, or raise {plan.name}.steps"
            )
        if settings.states:
            how_valued(plan, settings.reward, settings.value, config)
            check_tasks(plan, settings.tasks, dataset, config.seed)
        else:
            check_reward(plan, settings.reward, config.reward)
            if settings.tasks_per_step > len(dataset.train):
                raise ConfigError(
                    f"{plan.name}.tasks_per_step={settings.tasks_per_step}, but there are {len(dataset.train)} "
                    "training tasks: ask for fewer"
                )
        if settings.verl_values.trainer.test_freq > 0 and settings.test_tasks > len(dataset.validation):
            raise ConfigError(
                f"{plan.name}.test_tasks={settings.test_tasks}, but there are {len(dataset.validation)} "
                "validation tasks: ask for fewer, or raise data.validation_share"
            )
        check_verl(settings.verl, plan.name)

    async def learn(self, plan: PhasePlan, settings: PpoSettings, bench: Bench) -> Learned:
        """Run the remaining steps.

        Raises:
            ModelError: The model server did not load new weights.
            RunError: A checkpoint is broken, or rollouts are no longer possible.
        """
        return await PpoLoop(plan, settings, bench).run()


def _check_ahead(plan: PhasePlan, settings: PpoSettings, config: Config) -> None:
    if (temperature := config.models[plan.slot].temperature) != 1:
        raise ConfigError(
            f"models.{plan.slot}.temperature={temperature:g}: {plan.name}.ahead=1 needs to know how likely each token "
            f"was, which servers say for temperature 1: set it to 1, or {plan.name}.ahead=0"
        )
    if sleepers := [f"models.{slot}.sleep" for slot, model in config.used().items() if model.sleep]:
        raise ConfigError(
            f"{plan.name}.ahead=1 makes rollouts while the update is computed, and with {sleepers[0]}=true vLLM's "
            "servers answer nothing meanwhile: set one of them, not both"
        )


def _check_start(plan: PhasePlan, start: str, config: Config) -> None:
    here = {name: model.path for name, model in config.used().items() if model.has_weights}
    if start not in here:
        raise ConfigError(
            f"{plan.name}.start={start}: there are no such weights to begin with; the slots whose weights are here are "
            f"{', '.join(here)}"
        )
    if here[start] != here[plan.slot]:
        raise ConfigError(
            f"{plan.name}.start={start}: models.{start}.path={here[start]} is another model than models.{plan.slot}."
            f"path={here[plan.slot]}, so its weights do not fit; set {plan.name}.start=null"
        )
