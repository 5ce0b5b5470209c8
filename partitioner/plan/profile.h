#pragma once

// profile.json: what a model's layers cost, measured (profiler/) or written by any other framework.
// docs/reference/formats.md has a worked example. Times are medians over repeats; a spread is the
// interquartile range of those repeats. The last row computes the loss; measured profiles name it "loss" (its
// output has 0 bytes).

#include "schedules/costs/costs.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// A median with its spread (interquartile range).
struct Timing {
  Seconds median, spread;
};

void describe(auto& v, Timing& t) {
  v.required("median_ms", t.median, "median over repeats", json::between(0, kMostMilliseconds));
  v.optional("spread_ms", t.spread, "interquartile range over repeats", json::between(0, kMostMilliseconds));
}

/// What a layer does with one tensor that goes on before it, where several do.
struct InputProfile {
  bool kept = false, kept_for_weight = false, makes_gradient = false;
  std::optional<int> gradient_of{};  ///< the gradient of an output goes through
};

void describe(auto& v, InputProfile& i) {
  v.optional("kept", i.kept, "backward needs it");
  v.optional("kept_for_weight", i.kept_for_weight, "the weight half does");
  v.optional("makes_gradient", i.makes_gradient, "its gradient has memory of its own");
  v.optional("gradient_of", i.gradient_of, "the output whose gradient is its gradient", json::at_least(0));
}

/// The same of one that goes on behind it.
struct OutputProfile {
  Bytes bytes;
  std::optional<int> same_as{};
  bool has_gradient = true, kept = false, kept_for_weight = false, gradient_kept = false;
};

void describe(auto& v, OutputProfile& o) {
  v.required("bytes", o.bytes, "of the tensor");
  v.optional("same_as", o.same_as, "the input whose memory it has; absent: its own", json::at_least(0));
  v.optional("has_gradient", o.has_gradient, "floating-point tensors do");
  v.optional("kept", o.kept, "backward needs it");
  v.optional("kept_for_weight", o.kept_for_weight, "the weight half does");
  v.optional("gradient_kept", o.gradient_kept, "the weight half needs its gradient");
}

/// One layer at one micro-batch size. Bytes are requested tensor bytes.
struct LayerProfile {
  std::string name;
  Timing forward, backward_input, backward_weight, step;
  Bytes parameters, compute_copy{}, buffers;
  Bytes output;  ///< boundary after this layer
  Bytes kept_for_input, kept_for_weight;
  bool keeps_input = false, keeps_output = false;  ///< backward needs them
  /// Of those two, what the weight half still needs.
  std::optional<bool> weight_half_keeps_input, weight_half_keeps_output;
  bool weight_half_keeps_gradient = false;  ///< the gradient of the output, which kept_for_weight leaves out
  bool output_is_input = false;             ///< no bytes of its own
  /// Where several tensors go on before or behind it: each of them, in place of the flags above.
  std::vector<InputProfile> inputs{};
  std::vector<OutputProfile> outputs{};
  std::vector<std::string> fields{};  ///< of the batch that it reads besides its input
  Bytes forward_transient;            ///< above live-before plus what stays (kept and output)
  /// Likewise for both halves of backward; the input's gradient counts as staying. Negative where it takes
  /// the place of something kept (a softmax's gradient in the memory of its probabilities).
  Bytes backward_transient;
  std::optional<Bytes> backward_input_transient, backward_weight_transient;
  /// What the optimizer keeps of it; absent: the profile's factor times the parameters.
  std::optional<Bytes> optimizer{};
  std::optional<Bytes> step_transient{};   ///< of an update, above what is live before; absent: none
  std::optional<std::string> measured_as;  ///< a layer with an equal graph, run instead of this one
  /// Neither it nor a layer before it has a trained weight: it has no backward. Absent: no.
  std::optional<bool> frozen{};

  /// The factor as in Profile.
  [[nodiscard]] Bytes optimizer_bytes(double per_parameter_byte) const;
};

void describe(auto& v, LayerProfile& p) {
  v.required("name", p.name, "unique in the model", json::non_empty());
  v.required("forward", p.forward, "forward of one micro-batch");
  v.required("backward_input", p.backward_input, "gradient of the input");
  v.required("backward_weight", p.backward_weight, "gradient of the weights");
  v.optional("step", p.step, "optimizer update of the layer's parameters");
  v.required("parameter_bytes", p.parameters, "weights");
  v.optional("compute_copy_bytes", p.compute_copy,
             "mixed precision: the copy of the weights that the layer reads; 0: it reads them themselves");
  v.optional("buffer_bytes", p.buffers, "running statistics and the like");
  v.required("output_bytes", p.output, "the boundary after this layer");
  v.optional("kept_for_input_bytes", p.kept_for_input,
             "kept from forward to the input gradient, input and output apart");
  v.optional("kept_for_weight_bytes", p.kept_for_weight,
             "kept from the input gradient to the weight gradient, input, output and its gradient apart");
  v.optional("keeps_input", p.keeps_input, "backward needs the input");
  v.optional("keeps_output", p.keeps_output, "backward needs the output");
  v.optional("weight_half_keeps_input", p.weight_half_keeps_input,
             "its weight half does; absent: as backward, where there are parameters");
  v.optional("weight_half_keeps_output", p.weight_half_keeps_output, "likewise");
  v.optional("weight_half_keeps_gradient", p.weight_half_keeps_gradient,
             "the weight half needs the gradient of the output");
  v.optional("output_is_input", p.output_is_input, "the output is a view of the input");
  v.optional("inputs", p.inputs, "where several tensors go on before or behind it: those before it");
  v.optional("outputs", p.outputs, "likewise those behind it; output_bytes are of all, as they travel");
  v.optional("fields", p.fields, "fields of the batch that it reads besides its input, such as masks");
  v.optional("forward_transient_bytes", p.forward_transient, "forward's peak above what stays");
  const json::Range any_sign = json::at_least(-static_cast<double>(kMostActivationBytes.value));
  v.optional("backward_transient_bytes", p.backward_transient,
             "backward's peak above what stays; negative where the gradient replaces something kept",
             any_sign);
  v.optional("backward_input_transient_bytes", p.backward_input_transient,
             "of its input half; absent: backward_transient_bytes", any_sign);
  v.optional("backward_weight_transient_bytes", p.backward_weight_transient,
             "the weight half's peak above what is live before it; absent: backward_transient_bytes",
             any_sign);
  v.optional("optimizer_bytes", p.optimizer,
             "what the optimizer keeps of the layer; absent: optimizer_bytes_per_parameter_byte times "
             "parameter_bytes");
  v.optional("step_transient_bytes", p.step_transient,
             "the update's peak above what is live before it; absent: 0");
  v.optional("measured_as", p.measured_as,
             "a layer with an equal graph that was run instead of this one; absent: this one was");
  v.optional(
      "frozen", p.frozen,
      "no layer up to this one has a trained weight: it has no backward, and frozen weights are among its "
      "buffers; absent: false");
}

/// A field of the batch.
struct FieldBytes {
  std::string name;
  Bytes bytes;  ///< of one micro-batch
};

void describe(auto& v, FieldBytes& f) {
  v.required("name", f.name, "as layers name it", json::non_empty());
  v.required("bytes", f.bytes, "of one micro-batch");
}

/// All layers at one micro-batch size.
struct Measurement {
  std::int64_t micro_batch = 1;
  Bytes input, read{}, targets;
  std::optional<Bytes> loss{};  ///< of a loss report, where it has more than the loss itself (loss_report())
  std::vector<FieldBytes> fields{};
  std::vector<LayerProfile> layers;

  /// Throws InternalError where there is none of that name.
  [[nodiscard]] Bytes field_bytes(const std::string& name) const;

  /// The first layer that is not frozen.
  [[nodiscard]] int gradient_from() const {
    int layer = 0;
    while (layer < static_cast<int>(layers.size()) && layers[to_size(layer)].frozen.value_or(false)) ++layer;
    return layer;
  }
  [[nodiscard]] Bytes loss_report() const { return loss.value_or(CostTable{}.loss); }
  [[nodiscard]] Bytes input_of(int layer) const {
    return layer == 0 ? input : layers[to_size(layer - 1)].output;
  }
};

void describe(auto& v, Measurement& m) {
  v.optional("read_bytes", m.read, "of the data as it is read, where it is then made into another type");
  v.required("micro_batch", m.micro_batch, "samples", json::at_least(1));
  v.optional("input_bytes", m.input, "one micro-batch of the model's input");
  v.optional("targets_bytes", m.targets, "one micro-batch of what the loss compares with");
  v.optional("fields", m.fields, "fields of the batch that layers read besides their inputs");
  v.optional("loss_bytes", m.loss, "payload of a loss report; absent: 16, the loss has no terms");
  v.required("layers", m.layers, "in model order; the last computes the loss", json::non_empty());
}

/// A weight that several layers hold: its gradient is summed over them.
struct TiedWeight {
  std::string name;
  std::vector<int> layers;  ///< that hold it, ascending
  Bytes bytes;              ///< of one copy; each layer counts its own among its parameters
};

void describe(auto& v, TiedWeight& t) {
  v.required("name", t.name, "for people", json::non_empty());
  v.required("layers", t.layers, "the layers that hold it, by index", json::non_empty());
  v.required("bytes", t.bytes, "of one copy; each layer counts its own among its parameters");
}

struct LinkMeasurement {
  std::string transport;  ///< "local", "mpi", "nccl"
  Link link;
  std::optional<Seconds> latency_spread{};  ///< interquartile range over rounds; absent: not known
  std::optional<double> bytes_per_second_spread{};
};

void describe(auto& v, LinkMeasurement& l) {
  v.required("transport", l.transport, "what the link was measured over");
  describe(v, l.link);
  v.optional("latency_spread_ms", l.latency_spread,
             "interquartile range of the rounds that latency_ms is the median of, ms; absent: not known",
             kDuration);
  v.optional("bytes_per_second_spread", l.bytes_per_second_spread,
             "the same of bytes_per_second; absent: not known", json::at_least(0));
}

struct Profile {
  std::string model, model_fingerprint;
  std::string dtype = "float32", device = "cpu";
  std::optional<std::string> times_of{};
  std::int64_t device_megahertz = 0, device_most_megahertz = 0;
  int threads = 1, busy_ranks = 1, repeats = 1;
  std::string optimizer;                          ///< "adamw"; empty: step times and optimizer bytes unknown
  double optimizer_bytes_per_parameter_byte = 0;  ///< Adam: 2, SGD with momentum: 1
  std::vector<TiedWeight> ties{};
  std::vector<Measurement> measurements;
  std::optional<LinkMeasurement> link;
  std::optional<std::string> estimated_from;
  std::optional<std::int64_t> tokens_per_sample{}, multiply_adds_per_sample{};
  std::optional<double> peak_tflops{};  ///< of one device, for products of this dtype
  std::optional<double> core_share{};   ///< that the measuring thread got of a core (base/core_share.h)

  /// Of that micro-batch size; there is no extrapolation. Throws InputError naming the sizes there are.
  [[nodiscard]] const Measurement& at(std::int64_t micro_batch) const;
};

void describe(auto& v, Profile& p) {
  v.optional("model", p.model, "name for people");
  v.optional("model_fingerprint", p.model_fingerprint,
             "of the model's layers and shapes; empty: not checked");
  v.optional("dtype", p.dtype, "that layers compute in; parameters are float32 where it is a narrower one");
  v.optional("device", p.device, "what the times were measured on");
  v.optional(
      "times_of", p.times_of,
      "on a GPU: recordings, as runs with cuda.graphs repeat them, or launched operators; absent: of a CPU");
  v.optional("device_mhz", p.device_megahertz, "a GPU's clock when it had just been measured; 0: not known",
             json::at_least(0));
  v.optional("device_most_mhz", p.device_most_megahertz, "the most that clock can be; 0: not known",
             json::at_least(0));
  v.optional("threads", p.threads, "per rank", json::at_least(1));
  v.optional("busy_ranks", p.busy_ranks, "ranks that measured at the same time", json::at_least(1));
  v.optional("repeats", p.repeats, "behind each median", json::at_least(1));
  v.optional("optimizer", p.optimizer, "that the step times are of");
  v.optional("optimizer_bytes_per_parameter_byte", p.optimizer_bytes_per_parameter_byte, "Adam: 2",
             json::at_least(0));
  v.optional("ties", p.ties, "weights that several layers hold");
  v.required("measurements", p.measurements, "one per micro-batch size", json::non_empty());
  v.optional("link", p.link, "measured transport");
  v.optional("estimated_from", p.estimated_from,
             "what times were calculated from, where nothing was run; absent: they were measured");
  v.optional("tokens_per_sample", p.tokens_per_sample, "absent: samples are no tokens, or not known",
             json::at_least(1));
  v.optional("multiply_adds_per_sample", p.multiply_adds_per_sample, "of matrix products in one forward",
             json::at_least(1));
  v.optional("peak_tflops", p.peak_tflops,
             "most operations per second of one device in 10^12; absent: not known", json::above(0));
  v.optional("core_share", p.core_share,
             "what the measuring thread got of a core; below 1 others used it; absent: not known",
             json::at_least(0));
}

/// Layer names unique and the same at every micro-batch size, sizes distinct, times and bytes of all layers
/// together within the bounds of a stage (costs.h). Throws InputError with `file` and the pointer.
void validate(const Profile& profile, const std::string& file);
[[nodiscard]] Profile read_profile(const std::string& path);  ///< parse, read, validate

/// Costs of the stage that holds layers [first, last) of a measurement; the factor as in Profile. The memory
/// model behind it is derived in stage_walk.h.
[[nodiscard]] StageCosts stage_costs(const Measurement& measurement, int first, int last,
                                     double optimizer_bytes_per_parameter_byte);

}  // namespace stagecraft
