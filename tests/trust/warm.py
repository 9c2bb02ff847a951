"""What the server of processes does before it forks: see `killing`."""

import gc
import tempfile
import threading

import pytest
import torch
import torch.utils.tensorboard
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, BertConfig

import experiments.language_modeling.train
import glue.train
import tests.trust.recording
from experiments.language_modeling import __main__ as language_modeling
from glue import __main__ as finetuning

__all__ = ["experiments", "glue", "pytest", "tests"]

torch.set_num_threads(1)
# a lock of tqdm that all forked processes share would stay with one that is killed, and its thread
# would be forked away
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0
# the first parser and the first model that are made are slow
finetuning.EXPERIMENT.program.parser()
language_modeling.EXPERIMENT.program.parser()
config = BertConfig(
    vocab_size=9, hidden_size=2, num_hidden_layers=1, num_attention_heads=1, intermediate_size=2
)
with tempfile.TemporaryDirectory() as folder:
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoModelForSequenceClassification.from_pretrained(folder)
# what is there now is no litter for the processes to look through
gc.collect()
gc.freeze()
