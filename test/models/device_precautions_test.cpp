// What is done around calls on GPUs, whose kernels make other things than the CPU's: as an H200 made them
// (docs/measurements/2026-11-28-gpus.md), without a GPU.

#include "models/captured/format/graph_values.h"
#include "models/captured/format/step_parser.h"
#include "models/captured/replay/precautions.h"
#include "test/models/operator_calls.h"
#include "test/models/operator_trial.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::captured;
using namespace stagecraft::test;

namespace {

const c10::Device kCuda(c10::kCUDA, 0);

/// The only step of a call, with the types that the CPU makes.
class Around {
 public:
  Around(const std::string& line, c10::Device device) {
    OperatorTrial trial(call_of(Json::parse(line)));
    tensors_ = trial.tensors();
    step_ = trial.steps().back();
    for (const Argument& argument : step_.arguments) {
      const bool fixed = argument.kind == Argument::Kind::constant;
      constants_.push_back(fixed                                      ? argument.constant
                           : argument.kind == Argument::Kind::integer ? c10::IValue(argument.sizes[0].at(1))
                           : argument.kind == Argument::Kind::integers
                               ? c10::IValue(std::vector<std::int64_t>{})
                               : c10::IValue());
    }
    for (const ValueId id : step_.results)
      types_.push_back(trial.values()[static_cast<std::size_t>(id)].type);
    precautions_ = precautions_for(StepView(step_, trial.values(), 1, constants_), device);
  }

  [[nodiscard]] Tensors taken(Tensors given) const {
    torch::jit::Stack stack(given.begin(), given.end());
    precautions_.take(stack, step_);
    return tensors_of(stack);
  }
  [[nodiscard]] Tensors settled(Tensors made) const {
    torch::jit::Stack stack(made.begin(), made.end());
    precautions_.settle(stack, types_, 1);
    return tensors_of(stack);
  }
  [[nodiscard]] const Tensors& tensors() const { return tensors_; }
  [[nodiscard]] std::string called() const { return precautions_.op->schema().name(); }

 private:
  static Tensors tensors_of(const torch::jit::Stack& stack) {
    Tensors tensors;
    for (const c10::IValue& value : stack) tensors.push_back(value.toTensor());
    return tensors;
  }

  Step step_;
  Tensors tensors_;
  std::vector<c10::IValue> constants_;
  std::vector<ValueType> types_;
  Precautions precautions_;
};

}  // namespace

TEST_CASE("on GPUs a view that may not be one is a copy", "[device_precautions]") {
  CHECK(Around(R"(["aten::view", "f32[2,6]", [3,4]])", kCuda).called() == "aten::reshape");
  CHECK(Around(R"(["aten::_unsafe_view", "f32[2,6]", [3,4]])", kCuda).called() == "aten::reshape");
  CHECK(Around(R"(["aten::view", "f32[2,6]", [3,4]])", at::kCPU).called() == "aten::view");
}

TEST_CASE("kernels of GPUs that read memory as if it lay densely get it so", "[device_precautions]") {
  const at::Tensor image = at::rand({2, 6, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const char* const shuffle = R"(["aten::native_channel_shuffle", "f32[2,6,4,5]", 2])";
  CHECK(Around(shuffle, kCuda).taken({image})[0].is_contiguous());
  CHECK_FALSE(Around(shuffle, at::kCPU).taken({image})[0].is_contiguous());
  const Around norm(R"(["aten::_weight_norm_interface", "f32[4,3]", "f32[4,1]", 0])", kCuda);
  CHECK(norm.taken({at::rand({3, 4}).t(), at::rand({4, 1})})[0].is_contiguous());
}

TEST_CASE("results that say nothing are as the CPU leaves them", "[device_precautions]") {
  const at::Tensor image = at::rand({4, 6, 3, 5}), made = at::rand({6});
  const Around evaluates(
      R"(["aten::_native_batch_norm_legit_no_training", "f32[4,6,3,5]", "f32[6]", "f32[6]", "f32[6]", "f32[6]", 0.1, 1e-5])",
      kCuda);
  const Tensors norm = evaluates.settled({image, made, made});
  CHECK(norm[0].is_same(image));
  CHECK(norm[1].sizes() == at::IntArrayRef{0});
  CHECK(norm[2].sizes() == at::IntArrayRef{0});

  const Tensors sigmoid = Around(R"(["aten::log_sigmoid_forward", "f32[2,3]"])", kCuda)
                              .settled({at::rand({2, 3}), at::empty({0})});
  CHECK(at::equal(sigmoid[1], at::zeros({2, 3})));

  const std::string loss = R"(["aten::nll_loss2d_forward", "f32[2,5,3,4]", "i64[2,3,4]<5", null, )";
  const at::Tensor unwritten = at::full({}, 0.5);
  CHECK(Around(loss + "0, 1]", kCuda).settled({at::rand({2, 3, 4}), unwritten})[1].item<float>() == 0);
  CHECK(Around(loss + "1, 1]", kCuda).settled({at::rand({}), unwritten})[1].item<float>() == 0.5);
}

TEST_CASE("norms of narrow numbers with weights in float32 are computed in float32 on GPUs",
          "[device_precautions]") {
  const std::string line =
      R"(["aten::native_layer_norm", "bf16[4,3,8]", [3,8], "f32[3,8]", "f32[3,8]", 1e-5])";
  const Around mixed(line, kCuda);
  const Tensors given{mixed.tensors()[0], mixed.tensors()[1], mixed.tensors()[2]};
  for (const at::Tensor& tensor : mixed.taken(given)) CHECK(tensor.scalar_type() == at::kFloat);
  const Tensors made = mixed.settled({at::rand({4, 3, 8}), at::rand({4, 1, 1}), at::rand({4, 1, 1})});
  CHECK(made[0].scalar_type() == at::kBFloat16);
  CHECK(made[1].scalar_type() == at::kFloat);
  CHECK(Around(line, at::kCPU).taken(given)[0].scalar_type() == at::kBFloat16);
}
