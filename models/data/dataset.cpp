#include "models/data/dataset.h"

#include "models/data/arrays.h"
#include "models/data/buckets.h"
#include "models/data/given.h"
#include "models/data/held_to_its_word.h"
#include "models/data/idx.h"
#include "models/data/synthetic.h"
#include "models/data/text.h"
#include "models/data/tokens.h"
#include "models/tensors/libtorch_error.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace stagecraft {

at::Tensor Dataset::field(Split, const std::string& name, const std::vector<std::int64_t>&) const {
  throw InternalError(fmt::format("the data set has no field \"{}\"", name));
}

at::Tensor read_named(const Dataset& data, Split split, const std::string& name,
                      const std::vector<std::int64_t>& indices) {
  return name == "inputs"    ? data.inputs(split, indices)
         : name == "targets" ? data.targets(split, indices)
                             : data.field(split, name, indices);
}

std::vector<std::int64_t> Dataset::lengths(Split) const { return {}; }
std::vector<LengthBucket> Dataset::buckets(Split) const { return {}; }
SampleOrigin Dataset::origin(Split, const std::string&, std::int64_t index) const { return {{}, "", index}; }

namespace {

at::Tensor read_field(const Dataset& data, Split split, const BatchField& wanted,
                      const std::vector<std::int64_t>& indices) {
  if (wanted.from.empty()) {
    std::vector<std::int64_t> shape =
        data.sample().cut(wanted.shape, length_of(data.buckets(split), indices));
    shape.insert(shape.begin(), static_cast<std::int64_t>(indices.size()));
    return at::full(shape, wanted.fill, at::TensorOptions(wanted.dtype));
  }
  const at::Tensor read = read_named(data, split, wanted.from, indices);
  return fitted(read, wanted.shape).to(wanted.dtype);
}

}  // namespace

at::Tensor fitted(const at::Tensor& read, const std::vector<std::int64_t>& shape) {
  const auto wanted = static_cast<std::int64_t>(shape.size()) + 1;
  if (read.dim() == wanted + 1 && read.size(-1) == 1) return read.squeeze(-1);
  if (read.dim() + 1 == wanted && shape.back() == 1) return read.unsqueeze(-1);
  return read;
}

FieldTensors read_fields(const Dataset& data, Split split, const std::vector<BatchField>& wanted,
                         const std::vector<std::int64_t>& indices) {
  FieldTensors fields;
  for (const BatchField& field : wanted) fields[field.name] = read_field(data, split, field, indices);
  return fields;
}

Registry<DatasetKind>& DatasetKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<DatasetKind>([](Registry<DatasetKind>& added) {
    const auto path = [](const InputPlace& data) { return InputPlace{data.file, data.pointer + "/path"}; };
    added.add<IdxDataConfig>(
        "idx", [=](const IdxDataConfig& c, const InputPlace& data) { return open_idx(c, path(data)); },
        {.location_keys = {"path"}});
    added.add<TextDataConfig>(
        "text", [=](const TextDataConfig& c, const InputPlace& data) { return open_text(c, path(data)); },
        {.location_keys = {"path"}});
    added.add<ArraysDataConfig>("arrays", open_arrays, {.location_keys = {"path", "validation_path"}});
    added.add<TokensDataConfig>("tokens", open_tokens, {.location_keys = {"path", "validation_path"}});
    added.add<SyntheticDataConfig>("synthetic", open_synthetic);
    added.add<GivenDataConfig>("given", open_given);
  });
  return all;
}

void describe(Fields& f, DataConfig& c) {
  f.registered("type", c.source,
               "idx, text, arrays, tokens or synthetic; given: a program in Python brings the batches");
  f.optional("shuffle", c.shuffle, "a new order every epoch, by (seed, epoch)");
  f.optional("drop_last", c.drop_last, "leave out an epoch's last, short mini-batch");
  f.optional("buckets", c.buckets,
             "lengths that padded samples are cut to, ascending, the last the samples' own; mini-batches are "
             "of one length (default: no sample is cut)");
}

namespace {

void require_numbers(const Dataset& data, const InputPlace& place) {
  for (const char* name : {"inputs", "targets"}) {
    const std::optional<FieldSpec> its = data.sample().field(name);
    if (!its || std::ranges::find(its->shape, 0) == its->shape.end()) continue;
    throw InputError(place, fmt::format("{}: the {} of a sample are [{}]: no number at all", data.summary(),
                                        name, fmt::join(its->shape, ", ")));
  }
}

}  // namespace

std::unique_ptr<Dataset> open_dataset(const DataConfig& config, const InputPlace& place) {
  const std::string& name = config.source.name();
  std::unique_ptr<Dataset> data = named([&] { return fmt::format("data set \"{}\"", name); },
                                        [&] {
                                          std::unique_ptr<Dataset> made = config.source.make(place);
                                          if (made == nullptr)
                                            throw InternalError("what opens it gives a null pointer");
                                          return made;
                                        },
                                        PlaceInput::no);
  if (!config.source.entry().built_in) data = held_to_its_word(std::move(data), name);
  require_numbers(*data, place);
  if (config.buckets.empty()) return data;
  return in_buckets(std::move(data), config.buckets, {place.file, place.pointer + "/buckets"});
}

}  // namespace stagecraft
