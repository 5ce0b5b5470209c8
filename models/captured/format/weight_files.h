#pragma once

// Where a captured model's weights lie: safetensors files, found by PyTorch's names. A process reads
// the bytes of those tensors that it asks for, and of the others none.

#include "models/captured/format/value_type.h"
#include "models/tensors/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// Tensors of one safetensors file, or of several that an index in Hugging Face's form joins:
/// {"metadata": {...}, "weight_map": {"NAME": "model-00001-of-00002.safetensors", ...}}.
class WeightFiles {
 public:
  /// `path`: a safetensors file, an index, or a folder with `model` or `weights` as .safetensors or as
  /// .safetensors.index.json. An index names files beside itself and nothing else. Throws InputError.
  explicit WeightFiles(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }  ///< of the file or the index
  [[nodiscard]] bool contains(const std::string& name) const { return file_of_.contains(name); }
  [[nodiscard]] std::size_t size() const { return file_of_.size(); }
  [[nodiscard]] const std::map<std::string, std::string>& file_of() const { return file_of_; }

  /// Throws InputError with file and tensor where it has not this shape, or an element type that is not turned
  /// into this one: floating-point types are, into each other. Opens the file it lies in.
  void check(const std::string& name, const ValueType& type);
  /// Of the type, with memory of its own.
  [[nodiscard]] at::Tensor tensor(const std::string& name, const ValueType& type) const;

 private:
  const StoredSafetensors& file(const std::string& tensor);
  std::string path_;
  std::map<std::string, std::string> file_of_;  ///< path by tensor
  std::map<std::string, std::shared_ptr<const StoredSafetensors>> files_;
};

/// What else a tensor may be called.
struct WeightNames {
  std::string prefix;     ///< "bert.", which files of the model without its head leave out
  bool has_head = false;  ///< the model's own names have the prefix, and others are its head's
  /// Names of one tensor, or of a copy: what is missing under the first name is looked for under the second,
  /// and the other way round.
  std::map<std::string, std::string> same_as;
};

/// The name that `files` have for `name`; empty: none.
[[nodiscard]] std::string stored_name(const WeightFiles& files, const std::string& name,
                                      const WeightNames& names);

/// The weights of one model: from `first`, and from the model folder where `first` lacks what it may lack.
/// Threads: any, once made.
class ModelWeights {
 public:
  ModelWeights() = default;
  /// `missing`: what the error says that at() throws where neither has a tensor.
  ModelWeights(std::shared_ptr<WeightFiles> first, std::shared_ptr<WeightFiles> folder, WeightNames names,
               std::string missing);

  /// Finds the tensor. Throws InputError where it has another type, or where `first` is there and lacks it.
  /// Files of a model without its head lack the head, which then begins as in the folder.
  void need(const std::string& name, const ValueType& type);
  /// The same for what may be missing.
  void want(const std::string& name, const ValueType& type);
  /// Held in memory: constants and what else is not in weight files.
  void hold(const std::string& name, at::Tensor tensor) { held_[name] = std::move(tensor); }

  [[nodiscard]] bool holds(const std::string& name) const { return held_.contains(name); }

  /// On the CPU; nobody may write to it. Throws InputError where it is nowhere.
  [[nodiscard]] at::Tensor at(const std::string& name) const;
  /// Where the weights come from; null: nowhere.
  [[nodiscard]] const std::shared_ptr<WeightFiles>& first() const { return first_ ? first_ : folder_; }
  /// Names of the tensors of `first` that nobody needs or wants, in order.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  struct Located {
    std::shared_ptr<const WeightFiles> files;
    std::string stored;
    ValueType type;
  };
  bool locate(const std::shared_ptr<WeightFiles>& files, const std::string& name, const ValueType& type);
  [[nodiscard]] bool headless() const;

  std::shared_ptr<WeightFiles> first_, folder_;
  WeightNames names_;
  std::string missing_;
  std::map<std::string, Located> located_;
  std::map<std::string, at::Tensor> held_;
};

}  // namespace stagecraft::captured
