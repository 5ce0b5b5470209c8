#pragma once

// The `data` part of a config.

#include "stagecraft/base/describe.h"
#include "stagecraft/schedules/program/segments.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace stagecraft {

/// IDX files (plain or .gz) as MNIST and Fashion-MNIST have them, in one folder.
struct IdxDataConfig {
  static constexpr const char* kName = "idx";
  std::string path = "data/fashion-mnist";
};
template <class V>
void describe(V& v, IdxDataConfig& c) {
  v.optional("path", c.path, "folder with train-images-idx3-ubyte[.gz] and its three companions",
             json::non_empty());
}

/// One text file, cut into windows of `sequence` tokens that predict the next one.
struct TextDataConfig {
  static constexpr const char* kName = "text";
  std::string path = "data/shakespeare.txt";
  std::string tokens = "bytes";
  std::int64_t sequence = 128;
  double validation = 0.1;
};
template <class V>
void describe(V& v, TextDataConfig& c) {
  v.optional("path", c.path, "a text file", json::non_empty());
  v.optional("tokens", c.tokens, "bytes (vocabulary 256) or characters (those that occur)");
  v.require(c.tokens == "bytes" || c.tokens == "characters", "tokens",
            "expected \"bytes\" or \"characters\", found \"" + c.tokens + "\"");
  v.optional("sequence", c.sequence, "tokens of a sample",
             json::between(1, static_cast<double>(kMostRunSamples)));
  v.optional("validation", c.validation, "share of the text, taken from its end", json::from_up_to(0, 1));
}

/// Made up, learnable and the same everywhere: for tests, benchmarks and trying things out.
struct SyntheticDataConfig {
  static constexpr const char* kName = "synthetic";
  std::string task = "classification";
  std::int64_t samples = 1024;
  std::int64_t validation_samples = 256;
  std::vector<std::int64_t> shape{32};
  std::int64_t classes = 10;
  std::uint64_t seed = 1;
};
template <class V>
void describe(V& v, SyntheticDataConfig& c) {
  v.optional("task", c.task,
             "classification, regression or tokens (shape is then [sequence], classes the vocabulary)");
  v.require(c.task == "classification" || c.task == "regression" || c.task == "tokens", "task",
            "expected \"classification\", \"regression\" or \"tokens\", found \"" + c.task + "\"");
  constexpr auto most_samples = static_cast<double>(kMostRunSamples);
  v.optional("samples", c.samples, "training samples", json::between(1, most_samples));
  v.optional("validation_samples", c.validation_samples, "validation samples",
             json::between(0, most_samples));
  v.optional("shape", c.shape, "of one sample", json::non_empty());
  v.optional("classes", c.classes, "classes, outputs of the regression, or vocabulary", json::at_least(1));
  v.optional("seed", c.seed, "of the data");
}

struct DataConfig {
  std::variant<IdxDataConfig, TextDataConfig, SyntheticDataConfig> source;
  bool shuffle = true;
  bool drop_last = false;
};
template <class V>
void describe(V& v, DataConfig& c) {
  v.alternatives("type", c.source, "idx, text or synthetic");
  v.optional("shuffle", c.shuffle, "a new order every epoch, by (seed, epoch)");
  v.optional("drop_last", c.drop_last, "leave out an epoch's last, short mini-batch");
}

}  // namespace stagecraft
