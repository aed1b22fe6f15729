# requires: botocore
import botocore.session


def run(value):
    session = botocore.session.Session()
    client = session.create_client("s3", region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b")
    return [
        client.generate_presigned_url("get_object", {"Bucket": "b", "Key": "k"}).partition("?")[0],
        client.meta.service_model.api_version,
    ]
