"""What lies between protocols and backends: the repository, queues and batches, instances, statistics, shared memory."""
