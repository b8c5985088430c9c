#!/usr/bin/env bash
# A Ray cluster inside a job: the first node trains, the others do host work: sbatch ray_slurm.sh
# train.py has workers=Ray(options={"resources": {"host_work": 1}}, count=...). Not run here.
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

# Whoever reaches this port can run code here: the network of the nodes must be the job's own.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
address="$(srun --overlap --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | cut -d' ' -f1):6379"
export RAY_ADDRESS="$address" RAY_USAGE_STATS_ENABLED=0
export RAY_gcs_rpc_server_reconnect_timeout_s=3600

srun --overlap --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --port="${address##*:}" --num-cpus=0 --include-dashboard=false --block &
sleep 15
others="$((SLURM_JOB_NUM_NODES - 1))"
srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
  ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" \
  --resources="{\"host_work\": $SLURM_CPUS_PER_TASK}" --block &

srun --overlap --nodes=1 --ntasks=1 -w "$head" python train.py --checkpoints "$SCRATCH/checkpoints"
