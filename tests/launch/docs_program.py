"""Run the marked code blocks of a document on moto (see test_launch_docs.py) and print the requests of each."""

import json
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

BLOCK = re.compile(r"<!-- runs with: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
TRUST = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}


def main(document, label):
    import boto3
    import botocore.session
    from moto import mock_aws

    warnings.simplefilter("ignore")
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    Path("train.py").write_text("print('hello')")
    sent = []

    def keep(params, model, **_kwargs):
        if model.name == "CreateTrainingJob":
            sent.append(json.loads(params["body"]))

    made = botocore.session.Session.create_client

    def create_client(self, *args, **kwargs):
        client = made(self, *args, **kwargs)
        client.meta.events.register("before-call.sagemaker", keep)
        return client

    botocore.session.Session.create_client = create_client
    results = []
    with mock_aws():
        iam = boto3.client("iam")
        policy = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
        role = iam.create_role(RoleName="r", AssumeRolePolicyDocument=policy)["Role"]["Arn"]
        boto3.client("s3").create_bucket(Bucket="bucket")
        for wanted, code in BLOCK.findall(document.read_text()):
            if wanted == label:
                sent.clear()
                exec(compile(code, str(document), "exec"), {"role": role, "bucket": "bucket"})  # noqa: S102 - our own document
                results.append(list(sent))
    sys.stdout.write("RESULTS " + json.dumps(results) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
