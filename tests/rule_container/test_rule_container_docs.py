"""The policy and the template of docs/deploying.md are well formed, and accepted by moto."""

import json
import re
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

TEXT = (Path(__file__).parents[2] / "docs/deploying.md").read_text()


def block(language):
    return re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def _aws(monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield


def test_policy_has_no_wildcards():
    policy = json.loads(block("json"))
    actions = [
        action
        for each in policy["Statement"]
        for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    ]
    assert not any("*" in action for action in actions)
    assert {each["Sid"] for each in policy["Statement"] if each["Resource"] == "*"} == {"RegistryToken"}
    boto3.client("iam").create_policy(PolicyName="rules", PolicyDocument=json.dumps(policy))


def test_template_has_the_actions_of_the_policy():
    policy = json.loads(block("json"))
    template = block("yaml")
    for statement in policy["Statement"]:
        for action in [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]:
            assert action in template


def test_template_creates_a_stack():
    client = boto3.client("cloudformation")
    parameters = [
        {"ParameterKey": "Bucket", "ParameterValue": "bucket"},
        {"ParameterKey": "Prefix", "ParameterValue": "jobs"},
    ]
    client.create_stack(
        StackName="rules", TemplateBody=block("yaml"), Parameters=parameters, Capabilities=["CAPABILITY_IAM"]
    )
    (stack,) = client.describe_stacks(StackName="rules")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    assert {each["OutputKey"] for each in stack["Outputs"]} == {"RepositoryUri", "RoleArn"}


def test_only_this_account_can_assume_the_role():
    account = {"StringEquals": {"aws:SourceAccount": "ACCOUNT"}}
    (trust,) = json.loads(re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)[1])["Statement"]
    assert trust["Condition"] == account
    template = boto3.client("cloudformation")
    parameters = [{"ParameterKey": name, "ParameterValue": "x"} for name in ("Bucket", "Prefix")]
    template.create_stack(
        StackName="rules", TemplateBody=block("yaml"), Parameters=parameters, Capabilities=["CAPABILITY_IAM"]
    )
    (role,) = boto3.client("iam").list_roles()["Roles"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}
