"""Pass a profiler configuration to a training job: boto3, SDK v2, SDK v3, or the container's environment."""

from sm_profiler.launch.attachment import Attachment, attach
from sm_profiler.launch.environment import agent_environment
from sm_profiler.launch.request import check_request, to_request, to_shapes

__all__ = ["Attachment", "agent_environment", "attach", "check_request", "to_request", "to_shapes"]
