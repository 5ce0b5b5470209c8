// Every layer against a formula made of plain ATen operators, in double precision; see
// test/support/gradient_check.h for what is asserted of each.

#include "models/layers/dropout_masks.h"
#include "models/layers/gradient_accumulator.h"
#include "models/model.h"
#include "test/models/layer_cases.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

const Context kEvaluate{Mode::evaluate, {11, 4, 7, 2}};

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return at::matmul(x, w.t()) + b;
}

at::Tensor exact_gelu(const at::Tensor& x) { return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0))); }

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double epsilon) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred / at::sqrt(centred.square().mean(-1, true) + epsilon) * w + b;
}

/// Identity where there is no dropout.
at::Tensor drop(const at::Tensor& x, double probability, const Context& context, std::uint32_t stream = 0) {
  const Dropout dropout(probability, stream);
  if (!dropout.applies(context)) return x;
  const double kept = 1 - std::round(probability * 65536) / 65536;
  return x * dropout.mask(x.sizes(), context.key).to(at::kDouble) / kept;
}

at::Tensor attention(const Tensors& p, const at::Tensor& x, const AttentionSpec& spec,
                     const Context& context) {
  const std::int64_t n = x.size(0), t = x.size(1), c = x.size(2);
  const std::vector<at::Tensor> qkv = linear(layer_norm(x, p[0], p[1], 1e-5), p[2], p[3]).split(c, 2);
  const auto heads = [&](const at::Tensor& y) {
    return y.reshape({n, t, spec.heads, c / spec.heads}).transpose(1, 2);
  };
  at::Tensor scores = at::matmul(heads(qkv[0]), heads(qkv[1]).transpose(2, 3)) /
                      std::sqrt(static_cast<double>(c / spec.heads));
  const at::Tensor future = at::ones({t, t}, at::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor weights = drop(at::softmax(scores, -1), spec.attention_dropout, context, 1);
  const at::Tensor mixed = at::matmul(weights, heads(qkv[2])).transpose(1, 2).reshape({n, t, c});
  return x + drop(linear(mixed, p[4], p[5]), spec.dropout, context);
}

}  // namespace

TEST_CASE("linear", "[layers]") {
  at::manual_seed(1);
  const auto with_bias = [](const Tensors& p, const Tensors&, const at::Tensor& x) {
    return linear(x, p[0], p[1]);
  };
  check_layer(*layer_at(LinearSpec{3, true}, {5}), numbers({4, 5}), kTrain, with_bias);
  check_layer(*layer_at(LinearSpec{1, true}, {1}), numbers({1, 1}), kTrain, with_bias);
  check_layer(*layer_at(LinearSpec{7, true}, {6, 5}), numbers({2, 6, 5}), kTrain, with_bias);
  check_layer(*layer_at(LinearSpec{7, false}, {6, 5}), numbers({3, 6, 5}), kTrain,
              [](const Tensors& p, const Tensors&, const at::Tensor& x) { return at::matmul(x, p[0].t()); });
}

TEST_CASE("conv2d", "[layers]") {
  at::manual_seed(2);
  const auto check = [](const Conv2dSpec& s, std::int64_t batch, std::int64_t channels, std::int64_t h,
                        std::int64_t w) {
    INFO("kernel " << s.kernel << " stride " << s.stride << " padding " << s.padding << " bias " << s.bias);
    // Windows as columns times the kernels as rows.
    const auto reference = [&](const Tensors& p, const Tensors&, const at::Tensor& x) {
      const at::Tensor columns =
          at::im2col(x, {s.kernel, s.kernel}, {1, 1}, {s.padding, s.padding}, {s.stride, s.stride});
      at::Tensor y = at::matmul(p[0].reshape({s.channels, -1}), columns);
      if (s.bias) y = y + p[1].reshape({-1, 1});
      return y.reshape({batch, s.channels, (h + 2 * s.padding - s.kernel) / s.stride + 1, -1});
    };
    check_layer(*layer_at(s, {channels, h, w}), numbers({batch, channels, h, w}), kTrain, reference);
  };
  check({4, 3, 1, 1, true}, 2, 3, 6, 5);
  check({2, 3, 1, 1, false}, 3, 1, 4, 4);
  check({3, 2, 2, 0, true}, 1, 2, 7, 6);
  check({5, 1, 1, 0, true}, 2, 3, 3, 3);
}

TEST_CASE("batch norm", "[layers]") {
  at::manual_seed(3);
  const auto reference = [](const Context& context) {
    return [context](const Tensors& p, const Tensors& buffers, const at::Tensor& x) {
      std::vector<std::int64_t> over{0}, wide{1, x.size(1)};
      for (std::int64_t d = 2; d < x.dim(); ++d) {
        over.push_back(d);
        wide.push_back(1);
      }
      const bool training = context.mode == Mode::train;
      const at::Tensor mean = training ? x.mean(over, true) : buffers[0].view(wide);
      const at::Tensor variance = training ? (x - mean).square().mean(over, true) : buffers[1].view(wide);
      return (x - mean) / at::sqrt(variance + 1e-5) * p[0].view(wide) + p[1].view(wide);
    };
  };
  for (const Context& context : {kTrain, kEvaluate}) {
    check_layer(*layer_at(BatchNormSpec{}, {3, 4, 5}), numbers({2, 3, 4, 5}), context, reference(context));
    check_layer(*layer_at(BatchNormSpec{}, {6}), numbers({5, 6}), context, reference(context));
    check_layer(*layer_at(BatchNormSpec{}, {2, 3, 1}), numbers({1, 2, 3, 1}), context, reference(context));
  }
}

TEST_CASE("batch norm's running statistics", "[layers]") {
  const LayerPtr layer = layer_at(BatchNormSpec{0.25, 1e-5}, {2, 3, 3});
  LayerState state = random_state(*layer);
  const at::Tensor mean = state.buffers[0].clone(), variance = state.buffers[1].clone();
  const at::Tensor x = numbers({4, 2, 3, 3});
  const auto untouched = [&] {
    return at::equal(state.buffers[0], mean) && at::equal(state.buffers[1], variance);
  };
  const Weights weights{state.parameters, state.buffers};

  const at::Tensor evaluated = layer->forward(weights, x, kEvaluate, nullptr);
  CHECK(untouched());
  Context again = kTrain;
  again.commit_buffers = false;
  const at::Tensor recomputed = layer->forward(weights, x, again, nullptr);
  CHECK(untouched());
  const at::Tensor trained = layer->forward(weights, x, kTrain, nullptr);
  CHECK(at::equal(recomputed, trained));
  CHECK_FALSE(at::allclose(evaluated, trained));
  const at::Tensor batch_mean = x.mean({0, 2, 3}), unbiased = x.var(at::IntArrayRef{0, 2, 3}, true);
  CHECK(at::allclose(state.buffers[0], mean * 0.75 + batch_mean * 0.25));
  CHECK(at::allclose(state.buffers[1], variance * 0.75 + unbiased * 0.25));

  CHECK(layer->least_samples({2, 1, 1}) == 2);  // one number per channel has no variance
  CHECK(layer->least_samples({2, 2, 1}) == 1);
  CHECK_THROWS_AS(layer->forward(weights, numbers({1, 2, 1, 1}), kTrain, nullptr), InternalError);
  CHECK_NOTHROW(layer->forward(weights, numbers({1, 2, 1, 1}), kEvaluate, nullptr));
}

TEST_CASE("relu, gelu and flatten", "[layers]") {
  at::manual_seed(4);
  check_layer(*layer_at(ReluSpec{}, {5, 2}), numbers({3, 5, 2}), kTrain,
              [](const Tensors&, const Tensors&, const at::Tensor& x) {
                return at::where(x > 0, x, at::zeros_like(x));
              });
  check_layer(*layer_at(GeluSpec{}, {7}), numbers({3, 7}), kTrain,
              [](const Tensors&, const Tensors&, const at::Tensor& x) { return exact_gelu(x); });
  check_layer(*layer_at(FlattenSpec{}, {2, 3, 4}), numbers({3, 2, 3, 4}), kTrain,
              [](const Tensors&, const Tensors&, const at::Tensor& x) {
                return x.reshape({x.size(0), 24});
              });
}

TEST_CASE("max pool", "[layers]") {
  at::manual_seed(5);
  const auto check = [](const MaxPoolSpec& s, std::vector<std::int64_t> sample, std::int64_t batch) {
    std::vector<std::int64_t> shape{batch};
    shape.insert(shape.end(), sample.begin(), sample.end());
    check_layer(*layer_at(s, sample), numbers(shape), kTrain,
                [&](const Tensors&, const Tensors&, const at::Tensor& x) {
                  return at::amax(x.unfold(2, s.kernel, s.stride).unfold(3, s.kernel, s.stride), {4, 5});
                });
  };
  check({2, 2}, {3, 6, 4}, 2);
  check({2, 2}, {3, 5, 7}, 1);  // the last row and column belong to no window
  check({3, 1}, {1, 5, 5}, 3);  // windows overlap
}

TEST_CASE("layer norm", "[layers]") {
  at::manual_seed(6);
  const auto reference = [](const Tensors& p, const Tensors&, const at::Tensor& x) {
    return layer_norm(x, p[0], p[1], 1e-3);
  };
  check_layer(*layer_at(LayerNormSpec{1e-3}, {4, 6}), numbers({3, 4, 6}), kTrain, reference);
  check_layer(*layer_at(LayerNormSpec{1e-3}, {9}), numbers({1, 9}), kTrain, reference);
}

TEST_CASE("dropout", "[layers]") {
  at::manual_seed(7);
  for (const Context& context : {kTrain, kEvaluate}) {
    check_layer(*layer_at(DropoutSpec{0.3}, {40, 9}), numbers({3, 40, 9}), context,
                [&](const Tensors&, const Tensors&, const at::Tensor& x) { return drop(x, 0.3, context); });
  }
  check_layer(*layer_at(DropoutSpec{0}, {4}), numbers({3, 4}), kTrain,
              [](const Tensors&, const Tensors&, const at::Tensor& x) { return x * 1; });
}

TEST_CASE("embedding", "[layers]") {
  at::manual_seed(8);
  const at::Tensor tokens = at::randint(0, 11, {3, 5}, at::kLong);
  for (const double dropout : {0.0, 0.4}) {
    for (const Context& context : {kTrain, kEvaluate}) {
      check_layer(
          *layer_at(EmbeddingSpec{6, dropout}, {5}, 11), tokens, context,
          [&](const Tensors& p, const Tensors&, const at::Tensor& x) {
            return drop(p[0].index_select(0, x.flatten()).reshape({3, 5, 6}) + p[1], dropout, context);
          });
    }
  }
}

TEST_CASE("attention", "[layers]") {
  at::manual_seed(9);
  for (const double dropout : {0.0, 0.2}) {
    for (const double attention_dropout : {0.0, 0.3}) {
      for (const Context& context : {kTrain, kEvaluate}) {
        INFO("dropout " << dropout << ", attention dropout " << attention_dropout);
        const AttentionSpec spec{2, dropout, attention_dropout};
        const auto reference = [&](const Tensors& p, const Tensors&, const at::Tensor& x) {
          return attention(p, x, spec, context);
        };
        check_layer(*layer_at(spec, {7, 8}), numbers({3, 7, 8}), context, reference);
        check_layer(*layer_at(spec, {1, 4}), numbers({1, 1, 4}), context, reference);
        check_layer(*layer_at(spec, {70, 16}), numbers({2, 70, 16}), context, reference);
      }
    }
  }
}

TEST_CASE("attention looks at no later token", "[layers]") {
  for (const double attention_dropout : {0.0, 0.3}) {
    const LayerPtr layer = layer_at(AttentionSpec{2, 0, attention_dropout}, {6, 8});
    LayerState state = random_state(*layer);
    const at::Tensor x = numbers({2, 6, 8});
    at::Tensor changed = x.clone();
    changed.slice(1, 4).add_(1);
    const at::Tensor a = layer->forward({state.parameters, state.buffers}, x, kTrain, nullptr);
    const at::Tensor b = layer->forward({state.parameters, state.buffers}, changed, kTrain, nullptr);
    CHECK(at::allclose(a.slice(1, 0, 4), b.slice(1, 0, 4), 1e-12, 1e-12));
    CHECK_FALSE(at::allclose(a.slice(1, 4), b.slice(1, 4)));
  }
}

TEST_CASE("feed-forward", "[layers]") {
  at::manual_seed(10);
  for (const double dropout : {0.0, 0.2}) {
    for (const Context& context : {kTrain, kEvaluate}) {
      const auto reference = [&](const Tensors& p, const Tensors&, const at::Tensor& x) {
        const at::Tensor hidden = exact_gelu(linear(layer_norm(x, p[0], p[1], 1e-5), p[2], p[3]));
        return x + drop(linear(hidden, p[4], p[5]), dropout, context);
      };
      check_layer(*layer_at(FeedForwardSpec{0, dropout}, {7, 8}), numbers({3, 7, 8}), context, reference);
      check_layer(*layer_at(FeedForwardSpec{5, dropout}, {1, 4}), numbers({1, 1, 4}), context, reference);
    }
  }
}

namespace {

/// Rows of `size` numbers, taken by their positions.
at::Tensor taken(const at::Tensor& x, std::int64_t size) {
  return x.index_select(-1, at::arange(size, at::kLong).remainder(x.size(-1)));
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("delay is a function of its input", "[layers]") {
  at::manual_seed(12);
  const auto check = [](std::int64_t features, std::int64_t parameters, std::vector<std::int64_t> sample,
                        std::int64_t batch) {
    INFO("features " << features << ", parameters " << parameters);
    std::vector<std::int64_t> shape{batch};
    shape.insert(shape.end(), sample.begin(), sample.end());
    // Factors on every other: what a layer keeps for them must get in nobody's way.
    DelaySpec spec;
    spec.features = features;
    spec.parameters = parameters;
    if (batch % 2 == 0) spec.factors = {1, 2};
    check_layer(*layer_at(spec, sample), numbers(shape), kTrain,
                [&](const Tensors& p, const Tensors&, const at::Tensor& x) {
                  const at::Tensor rows = x.reshape({batch, -1});
                  const std::int64_t outputs = features > 0 ? features : rows.size(1);
                  at::Tensor y = taken(rows, outputs);
                  if (parameters > 0) y = y * taken(p[0], outputs);
                  return features > 0 ? y : y.reshape(x.sizes());
                });
  };
  for (const std::int64_t batch : {1, 2, 3, 4}) {
    for (const std::int64_t parameters : {0, 1, 3, 6, 12, 25}) {
      check(0, parameters, {6}, batch);
      check(0, parameters, {2, 3, 2}, batch);
      for (const std::int64_t features : {1, 4, 6, 12, 17}) check(features, parameters, {6}, batch);
      check(5, parameters, {2, 3, 2}, batch);
      check(7, parameters, {1}, batch);
    }
  }
}

TEST_CASE("delay takes at least the time asked for, each half its own", "[layers]") {
  // Nothing is said of the most: the machine may be busy.
  const at::Tensor x = numbers({2, 3});
  for (const DelayWait wait : {DelayWait::sleep, DelayWait::spin}) {
    for (const std::int64_t micro_batch : {0, 1, 2, 3}) {
      const double factor = micro_batch % 2 == 1 ? 2.5 : 1;
      INFO(enum_name(wait) << ", micro-batch " << micro_batch);
      const LayerPtr layer = layer_at(DelaySpec{.forward = Seconds{0.004},
                                                .backward_input = Seconds{0.002},
                                                .backward_weight = Seconds{0.006},
                                                .wait = wait,
                                                .features = 5,
                                                .parameters = 2,
                                                .factors = {1, 2.5}},
                                      {3});
      LayerState state = random_state(*layer);
      GradientAccumulator sink(state.parameters);
      Context context = kTrain;
      context.key.micro_batch = static_cast<std::uint64_t>(micro_batch);
      Kept kept;
      at::Tensor y;
      const c10::InferenceMode guard;
      CHECK(seconds_of([&] {
              y = layer->forward({state.parameters, state.buffers}, x, context, &kept);
            }) >= 0.004 * factor);
      CHECK(seconds_of([&] { (void)layer->backward_input(state.parameters, y, kept, true); }) >=
            0.002 * factor);
      CHECK(seconds_of([&] { layer->backward_weight(kept, sink); }) >= 0.006 * factor);
      CHECK(seconds_of([&] {
              y = layer->forward({state.parameters, state.buffers}, x, context, nullptr);
            }) >= 0.004 * factor);  // nothing kept: an evaluation, or what will be recomputed
    }
  }
}

TEST_CASE("a dry pass does not wait for delays, whose times are no part of the model", "[layers]") {
  DelaySpec spec;
  spec.forward = spec.backward_input = Seconds{3600};  // hours, if it waited
  spec.features = 7;
  const auto model = [&] {
    SequentialConfig layers;
    layers.layers.push_back({spec, "delay"});
    return build_model({layers}, {.shape = {3}, .dtype = at::kFloat, .classes = 7}, at::kFloat, {});
  };
  const Model slow = model();
  CHECK(boundaries(slow, 4).back().shape == std::vector<std::int64_t>{4, 7});
  spec.forward = Seconds{0.001};
  CHECK(model().fingerprint == slow.fingerprint);
  spec.features = 8;
  CHECK(model().fingerprint != slow.fingerprint);
}

TEST_CASE("single precision stays near double", "[layers]") {
  // The kernels of training: flash attention, oneDNN and MKL in single precision.
  at::manual_seed(11);
  const AttentionSpec spec{4, 0, 0};
  const LayerPtr layer = layer_at(spec, {130, 64});
  LayerState state = random_state(*layer);
  for (at::Tensor& p : state.parameters) p.mul_(0.2);
  const at::Tensor x = numbers({2, 130, 64});
  Tensors single, none;
  for (const at::Tensor& p : state.parameters) single.push_back(p.to(at::kFloat));
  const at::Tensor output = layer->forward({single, none}, x.to(at::kFloat), kTrain, nullptr);
  CHECK(output.scalar_type() == at::kFloat);
  CHECK((output - attention(state.parameters, x, spec, kTrain)).abs().max().item<double>() < 1e-5);
}

TEST_CASE("layers refuse what they cannot take", "[layers]") {
  const auto refused = [](const auto& spec, std::vector<std::int64_t> sample, const std::string& why,
                          std::int64_t vocabulary = 0) {
    try {
      (void)layer_at(spec, std::move(sample), vocabulary);
      FAIL("accepted; expected: " << why);
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), Catch::Matchers::ContainsSubstring("run.json: /model/layers/3") &&
                                   Catch::Matchers::ContainsSubstring("the layer") &&
                                   Catch::Matchers::ContainsSubstring(why));
    }
  };
  refused(LinearSpec{4, true}, {3, 8, 8}, "put a flatten before it");
  refused(LinearSpec{4, true}, {16}, "embedding", 10);
  refused(Conv2dSpec{4}, {16}, "[channels, height, width]");
  refused(Conv2dSpec{4, 5, 1, 0, true}, {1, 4, 9}, "5x5 kernel does not fit");
  refused(MaxPoolSpec{}, {3, 1, 8}, "leaves no pixel");
  refused(BatchNormSpec{}, {3, 4}, "batch_norm takes");
  refused(LayerNormSpec{}, {5}, "layer_norm", 10);
  refused(EmbeddingSpec{8, 0}, {16}, "embedding takes tokens");
  refused(AttentionSpec{3, 0, 0}, {4, 8}, "width 8 is not a multiple of heads 3");
  refused(AttentionSpec{2, 0, 0}, {8}, "[tokens, width]");
  refused(FeedForwardSpec{}, {3, 8, 8}, "[tokens, width]");
  refused(DelaySpec{}, {16}, "put an embedding before it", 10);
}
