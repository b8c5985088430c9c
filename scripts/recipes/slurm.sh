#!/usr/bin/env bash
# Two nodes of eight devices, one process on each: sbatch slurm.sh
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j-%t.log
set -euo pipefail

# jax.distributed.initialize() finds all that it needs in the variables of srun. Name the first node
# and a port of your own if its choice does not do, for example where several jobs share a node.
JAX_COORDINATOR_ADDRESS="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):9376"
export JAX_COORDINATOR_ADDRESS
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9

# After a failure or a preemption the job is queued again, and goes on from its checkpoint.
srun --kill-on-bad-exit=1 python train.py --checkpoints "$SCRATCH/checkpoints"
