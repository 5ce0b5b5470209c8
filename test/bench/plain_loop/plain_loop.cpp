// One rank's training without Stagecraft's engine: torch::nn, autograd and torch::optim, micro-batches one
// after the other with gradients accumulated. Weights and data are those of a Stagecraft run with
// checkpoint.at_start=true.
//   bench_plain_loop RUN_DIR STEPS OUT.jsonl

#include "engine/config/config.h"
#include "engine/optimizers/adam.h"
#include "engine/run/resolve/training_inputs.h"
#include "models/data/dataset.h"
#include "models/families/gpt.h"
#include "models/tensors/safetensors.h"

#include <fmt/format.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>

namespace {

using stagecraft::Split;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct EmbeddingImpl : nn::Module {
  EmbeddingImpl(std::int64_t vocabulary, std::int64_t sequence, std::int64_t hidden_size)
      : tokens(register_parameter("tokens", torch::empty({vocabulary, hidden_size}))),
        positions(register_parameter("positions", torch::empty({sequence, hidden_size}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::embedding(tokens, x) + positions; }
  torch::Tensor tokens, positions;
};
TORCH_MODULE(Embedding);

struct AttentionImpl : nn::Module {
  AttentionImpl(std::int64_t hidden_size, std::int64_t heads_)
      : heads(heads_),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({hidden_size})))),
        qkv(register_module("qkv", nn::Linear(hidden_size, 3 * hidden_size))),
        project(register_module("project", nn::Linear(hidden_size, hidden_size))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto samples = x.size(0), tokens = x.size(1), hidden_size = x.size(2);
    const auto parts =
        qkv(norm(x)).view({samples, tokens, 3, heads, hidden_size / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    return x + project(mixed.transpose(1, 2).reshape({samples, tokens, hidden_size}));
  }
  std::int64_t heads;
  nn::LayerNorm norm;
  nn::Linear qkv, project;
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : nn::Module {
  FeedForwardImpl(std::int64_t hidden_size, std::int64_t hidden)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({hidden_size})))),
        expand(register_module("expand", nn::Linear(hidden_size, hidden))),
        project(register_module("project", nn::Linear(hidden, hidden_size))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + project(F::gelu(expand(norm(x)))); }
  nn::LayerNorm norm;
  nn::Linear expand, project;
};
TORCH_MODULE(FeedForward);

/// The layer `name` with the checkpoint's weights.
template <class Layer>
void append(nn::Sequential& model, const std::string& checkpoint, const std::string& name, Layer layer) {
  const auto file = stagecraft::read_safetensors(checkpoint + "/" + name + ".safetensors");
  const torch::NoGradGuard off;
  for (auto& parameter : layer->named_parameters()) {
    parameter.value().copy_(
        file.tensor("parameter/" + parameter.key(), parameter.value().sizes(), torch::kFloat));
  }
  model->push_back(layer);
}

nn::Sequential gpt(const stagecraft::GptConfig& config, const stagecraft::SampleSpec& sample,
                   const std::string& checkpoint) {
  nn::Sequential model;
  const auto hidden_size = config.hidden_size;
  append(model, checkpoint, "embedding", Embedding(sample.classes, sample.shape[0], hidden_size));
  for (std::int64_t block = 0; block < config.blocks; ++block) {
    append(model, checkpoint, fmt::format("block{}.attention", block), Attention(hidden_size, config.heads));
    append(model, checkpoint, fmt::format("block{}.feed_forward", block),
           FeedForward(hidden_size, config.feed_forward > 0 ? config.feed_forward : 4 * hidden_size));
  }
  append(model, checkpoint, "norm", nn::LayerNorm(nn::LayerNormOptions({hidden_size})));
  append(model, checkpoint, "head", nn::Linear(nn::LinearOptions(hidden_size, sample.classes).bias(false)));
  return model;
}

int loop(const std::string& run_dir, std::int64_t steps, const std::string& out) {
  torch::set_num_threads(1);
  const std::string file = run_dir + "/config.json";
  const stagecraft::RunConfig config = stagecraft::read_run_config(file);
  const stagecraft::TrainingInputs inputs = stagecraft::open_training_inputs(config, file);
  const auto* family = config.model.family.get_if<stagecraft::GptConfig>();
  const auto* adam = config.optimizer.type.get_if<stagecraft::AdamWConfig>();
  if (family == nullptr || adam == nullptr) {
    fmt::print(stderr, "bench_plain_loop: {} is not a gpt with AdamW\n", file);
    return 2;
  }
  nn::Sequential model = gpt(*family, inputs.data->sample(), run_dir + "/checkpoints/step-00000000");
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(adam->lr)
                                                         .betas({adam->betas[0], adam->betas[1]})
                                                         .eps(adam->eps)
                                                         .weight_decay(adam->weight_decay));
  std::ofstream lines(out);
  const std::int64_t size = inputs.data->size(Split::train);
  const std::int64_t batches = size / config.train_batch_size;
  auto before = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < steps; ++step) {
    const stagecraft::Shuffle order(size, static_cast<std::uint64_t>(config.seed), step / batches,
                                    config.data.shuffle);
    const std::int64_t first = step % batches * config.train_batch_size;
    optimizer.zero_grad();
    double total = 0;
    for (std::int64_t at = 0; at < config.train_batch_size; at += config.micro_batch_size) {
      std::vector<std::int64_t> samples;
      for (std::int64_t i = 0; i < config.micro_batch_size; ++i) samples.push_back(order(first + at + i));
      const auto logits = model->forward(inputs.data->inputs(Split::train, samples)).flatten(0, 1);
      const auto loss = F::cross_entropy(logits, inputs.data->targets(Split::train, samples).flatten()) /
                        static_cast<double>(config.micro_batches());
      loss.backward();
      total += loss.item<double>();
    }
    optimizer.step();
    const auto now = std::chrono::steady_clock::now();
    lines << fmt::format("{{\"step\": {}, \"loss\": {}, \"ms\": {}}}", step + 1, total,
                         std::chrono::duration<double, std::milli>(now - before).count())
          << std::endl;
    before = now;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: bench_plain_loop RUN_DIR STEPS OUT.jsonl\n");
    return 2;
  }
  try {
    return loop(argv[1], std::stoll(argv[2]), argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_plain_loop: {}\n", error.what());
    return 2;
  }
}
