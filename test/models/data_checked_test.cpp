// Labels and tokens beyond the model are found in the data, not by a kernel: before a run where the data is read
// quickly, else with the batch.

#include "models/check/checked_data.h"
#include "models/data/arrays.h"
#include "models/data/tokens.h"
#include "models/families/captured.h"
#include "models/families/convnet.h"
#include "models/families/mlp.h"
#include "models/losses/cross_entropy.h"
#include "models/losses/mean_squared_error.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

/// Data that takes its time, or lies on a disk too large to look through.
class Slow final : public Dataset {
 public:
  explicit Slow(std::unique_ptr<Dataset> data) : data_(std::move(data)) {}
  [[nodiscard]] std::int64_t size(Split split) const override { return data_->size(split); }
  [[nodiscard]] SampleSpec sample() const override { return data_->sample(); }
  [[nodiscard]] at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return data_->inputs(split, indices);
  }
  [[nodiscard]] at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return data_->targets(split, indices);
  }
  [[nodiscard]] at::Tensor field(Split split, const std::string& name,
                                 const std::vector<std::int64_t>& indices) const override {
    return data_->field(split, name, indices);
  }
  [[nodiscard]] SampleOrigin origin(Split split, const std::string& field,
                                    std::int64_t index) const override {
    return data_->origin(split, field, index);
  }
  [[nodiscard]] std::string fingerprint() const override { return data_->fingerprint(); }
  [[nodiscard]] std::string summary() const override { return data_->summary(); }

 private:
  std::unique_ptr<Dataset> data_;
};

using NamedTensors = std::map<std::string, at::Tensor>;

/// Rows of test/data/captured/columns, all allowed: x[:,0] < 5, x[:,1] < 11, x[:,0] + x[:,2] < 12, kind < 2,
/// labels + 1 < 4 or -100.
NamedTensors good_columns() {
  return {{"inputs", at::tensor({4, 10, 7, 0, 0, 0, 1, 5, 10, 2, 9, 3}, at::kLong).view({4, 3})},
          {"kind", at::tensor({0, 1, 1, 0}, at::kLong)},
          {"labels", at::tensor({2, -1, 0, -101}, at::kLong)}};
}

const ModelConfig& columns() {
  static const ModelConfig config = [] {
    CapturedConfig captured;
    captured.path = STAGECRAFT_CAPTURED_MODELS "/columns";
    return ModelConfig{captured};
  }();
  return config;
}

struct CheckOutcome {
  std::string at_start;  ///< "": nothing
  std::string at_load;   ///< of the whole data as one batch; "": nothing
};

/// How such data fares with a model and its own loss, or `loss`.
CheckOutcome checked_outcome(const NamedTensors& train, const NamedTensors& validation,
                             const ModelConfig& config, bool quick,
                             const std::shared_ptr<const Loss>& loss = nullptr, std::int64_t classes = 0) {
  const test::ScratchFolder folder;
  ArraysDataConfig arrays;
  arrays.path = folder.path("train.safetensors");
  write_safetensors(arrays.path, {train.begin(), train.end()});
  if (!validation.empty()) {
    arrays.validation_path = folder.path("validation.safetensors");
    write_safetensors(arrays.validation_path, {validation.begin(), validation.end()});
  }
  arrays.classes = classes;
  std::unique_ptr<Dataset> data = open_arrays(arrays, {"run.json", "/data"});
  if (!quick) data = std::make_unique<Slow>(std::move(data));
  const Model model = build_model(config, data->sample(), at::kFloat, {"run.json", "/model"});
  const Loss& used = loss ? *loss : *model.loss;
  CheckOutcome found;
  try {
    data = checked_for(std::move(data), model, used, "run.json");
  } catch (const InputError& error) {
    found.at_start = error.what();
    return found;
  }
  const Split split = validation.empty() ? Split::train : Split::validation;
  std::vector<std::int64_t> all(static_cast<std::size_t>(data->size(split)));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  try {
    (void)data->inputs(split, all);
    if (used.fields().empty()) (void)data->targets(split, all);
    (void)read_fields(*data, split, model.fields, all);
  } catch (const InputError& error) {
    found.at_load = error.what();
  }
  return found;
}

/// One of the good rows changed.
struct ChangedRow {
  std::string array;
  std::int64_t row, column, number;
  std::string what;  ///< that a refusal says; empty: it is allowed
};

TEST_CASE("numbers beyond a captured model's tables and classes are found, and no others", "[data]") {
  const std::vector<ChangedRow> changes{
      {"inputs", 2, 0, 5,
       "sample 2 has 5 in its inputs, and an embedding of 5 rows (colours.weight) takes 0 to 4"},
      {"inputs", 1, 0, -1, "sample 1 has -1 in its inputs, and an embedding of 5 rows (colours.weight)"},
      {"inputs", 3, 1, 11,
       "sample 3 has 11 in its inputs, and an embedding of 11 rows (shapes.weight) takes 0 to 10"},
      {"inputs", 1, 2, 12, "sample 1 has 12 in its inputs, and an embedding of 12 rows (pairs.weight)"},
      {"inputs", 0, 2, 8, "sample 0 leads to 12"},
      {"kind", 3, 0, 2, "sample 3 has 2 in its kind, and an embedding of 2 rows (kinds.weight) takes 0 to 1"},
      {"kind", 0, 0, -1, "sample 0 has -1 in its kind"},
      {"labels", 1, 0, 3,
       "sample 1 leads to 4 in its labels, and a loss over 4 classes takes 0 to 3 (and -100"},
      {"labels", 2, 0, -2, "sample 2 leads to -1 in its labels"},
      {"labels", 2, 0, -100, "sample 2 leads to -99 in its labels"},
      // What tables of other columns would not take.
      {"inputs", 1, 1, 10, ""},
      {"inputs", 1, 2, 11, ""},
      {"inputs", 0, 2, -4, ""},
      {"labels", 0, 0, -101, ""},
  };
  for (const bool quick : {true, false}) {
    for (const bool validates : {false, true}) {
      const auto fares = [&](const NamedTensors& bad) {
        return validates ? checked_outcome(good_columns(), bad, columns(), quick)
                         : checked_outcome(bad, {}, columns(), quick);
      };
      const CheckOutcome all_good = fares(good_columns());
      CHECK(all_good.at_start + all_good.at_load == "");
      for (const auto& [array, row, column, number, what] : changes) {
        NamedTensors bad = good_columns();
        at::Tensor& changed = bad.at(array);
        changed = changed.clone();
        changed.view({4, -1}).index_put_({at::tensor(row), at::tensor(column)},
                                         at::tensor(number, at::kLong));
        const CheckOutcome found = fares(bad);
        INFO(array << " row " << row << " becomes " << number << ": " << found.at_start << found.at_load);
        CHECK(found.at_start.empty() == (what.empty() || !quick));
        CHECK(found.at_load.empty() == (what.empty() || quick));
        if (what.empty()) continue;
        const char* key = validates ? "/data/validation_path: " : "/data/path: ";
        const char* file = validates ? "validation.safetensors" : "train.safetensors";
        CHECK_THAT(found.at_start + found.at_load,
                   ContainsSubstring(key) && ContainsSubstring(file) && ContainsSubstring(what));
      }
    }
  }
}

TEST_CASE("labels are compared with the classes that a config says, by the built-in losses", "[data]") {
  const auto loss = make_loss(CrossEntropy{}, Reduction::mean);
  const ModelConfig mlp{MlpConfig{.hidden = {4}}};
  const auto with = [](std::int64_t label) {
    return NamedTensors{{"inputs", at::zeros({3, 2})},
                        {"targets", at::tensor({std::int64_t{0}, label, std::int64_t{1}})}};
  };
  for (const std::int64_t label : {3, 5, -1, -100}) {
    for (const bool quick : {true, false}) {
      const CheckOutcome found = checked_outcome(with(label), {}, mlp, quick, loss, 3);
      CHECK_THAT(quick ? found.at_start : found.at_load,
                 ContainsSubstring(fmt::format(
                     "sample 1 has {} in its targets, and a loss over 3 classes takes 0 to 2", label)));
    }
  }
  // Classes that are counted in the training data are those of the validation data, too.
  CHECK_THAT(checked_outcome(with(2), with(3), mlp, true, loss).at_start,
             ContainsSubstring("/data/validation_path"));
  const CheckOutcome good = checked_outcome(with(2), with(1), mlp, true, loss);
  CHECK(good.at_start + good.at_load == "");
}

TEST_CASE("numbers that are not finite are found in the data, where the model or the loss cannot use them",
          "[data]") {
  const ModelConfig mlp{MlpConfig{.hidden = {4}}};
  ConvnetConfig groups;
  groups.groups = {{2}};
  const ModelConfig convnet{groups};
  const auto classes = make_loss(CrossEntropy{}, Reduction::mean);
  const auto squares = make_loss(MeanSquaredError{}, Reduction::mean);
  struct Case {
    const ModelConfig& model;
    NamedTensors good;
    std::shared_ptr<const Loss> loss;
    std::string reader;  // of the inputs
  };
  const at::Tensor labels = at::tensor({0, 1, 0}, at::kLong);
  const std::vector<Case> cases{
      {mlp, {{"inputs", at::ones({3, 2})}, {"targets", labels}}, classes, "layer hidden0.linear (linear)"},
      {mlp, {{"inputs", at::ones({3, 2, 2})}, {"targets", labels}}, classes, "layer hidden0.linear (linear)"},
      {mlp,
       {{"inputs", at::ones({3, 2}, at::kDouble)}, {"targets", at::ones({3, 2})}},
       squares,
       "layer hidden0.linear"},
      {convnet,
       {{"inputs", at::ones({3, 1, 4, 4})}, {"targets", labels}},
       classes,
       "layer group0.conv0 (conv2d)"},
  };
  for (const auto& [model, good, loss, reader] : cases) {
    for (const bool quick : {true, false}) {
      const CheckOutcome fine = checked_outcome(good, {}, model, quick, loss);
      CHECK(fine.at_start + fine.at_load == "");
      for (const auto& [name, tensor] : good) {
        if (!tensor.is_floating_point()) continue;
        for (const double number : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
          for (const bool validates : {false, true}) {
            NamedTensors bad = good;
            bad[name] = tensor.clone();
            bad[name].view({3, -1}).select(0, 1).select(0, 1).fill_(number);
            const CheckOutcome found = validates ? checked_outcome(good, bad, model, quick, loss)
                                                 : checked_outcome(bad, {}, model, quick, loss);
            INFO(name << " " << number << ": " << found.at_start << found.at_load);
            CHECK(found.at_start.empty() != quick);
            CHECK(found.at_load.empty() == quick);
            CHECK_THAT(found.at_start + found.at_load,
                       ContainsSubstring(fmt::format("sample 1 has {} in its {}, and {}", number, name,
                                                     name == "inputs" ? reader : "a squared error")) &&
                           ContainsSubstring(validates ? "/data/validation_path: " : "/data/path: "));
          }
        }
      }
    }
  }
}

TEST_CASE("a field that the config fills is compared at once", "[data]") {
  CapturedConfig captured;
  captured.path = STAGECRAFT_CAPTURED_MODELS "/columns";
  for (const double fill : {1.0, 2.0}) {
    captured.fields = {{"kind", "", fill}};
    const CheckOutcome found = checked_outcome(good_columns(), {}, ModelConfig{captured}, false);
    if (fill == 1) CHECK(found.at_start + found.at_load == "");
    if (fill == 2)
      CHECK_THAT(found.at_start, ContainsSubstring("run.json: /model/fields: \"kind\" is filled with 2"));
  }
}

/// Looks up each token.
class Lookup final : public Layer {
 public:
  Lookup()
      : Layer("lookup", {.type = "lookup", .number_checks = {{.end = 5, .reader = "a table of 5 rows"}}}) {}
  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept*) const override {
    return input;
  }
  at::Tensor backward_input(const stagecraft::Tensors&, const at::Tensor&, Kept&, bool) const override {
    return {};
  }
};

/// More than is looked through.
class Large final : public Dataset {
 public:
  explicit Large(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  std::int64_t size(Split) const override { return std::int64_t{1} << 40U; }
  SampleSpec sample() const override { return {{3}, at::kLong, vocabulary_, Targets::none}; }
  at::Tensor inputs(Split, const std::vector<std::int64_t>&) const override { throw InternalError("read"); }
  at::Tensor targets(Split, const std::vector<std::int64_t>&) const override { throw InternalError("read"); }
  bool reads_quickly() const override { return true; }
  std::string fingerprint() const override { return ""; }
  std::string summary() const override { return "large"; }

 private:
  std::int64_t vocabulary_;
};

TEST_CASE("a vocabulary beyond an embedding is said at once where the data is large", "[data]") {
  Model model;
  model.layers = {std::make_shared<const Lookup>()};
  const auto loss = make_loss(CrossEntropy{}, Reduction::mean);
  CHECK_NOTHROW(checked_for(std::make_unique<Large>(5), model, *loss, "run.json"));
  CHECK_THROWS_WITH(checked_for(std::make_unique<Large>(6), model, *loss, "run.json"),
                    ContainsSubstring("run.json: /data: large: its inputs go up to 5") &&
                        ContainsSubstring("a table of 5 rows"));
}

}  // namespace
}  // namespace stagecraft
