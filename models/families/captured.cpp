#include "models/families/captured.h"

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "base/input_path.h"
#include "base/json.h"
#include "base/nearest.h"
#include "models/captured/captured_layer.h"
#include "models/captured/captured_loss.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// The run's precision is not known yet: a layer compares it in the dry pass.
bool takes(const captured::ValueType& input, const SampleSpec& sample) {
  if ((sample.dtype == at::kLong) != (input.dtype == at::kLong)) return false;
  std::vector<std::int64_t> two = sample.shape;
  two.insert(two.begin(), 2);
  return input.samples_of(two) == 2;
}

}  // namespace

using captured::FolderField;
using captured::ModelFolder;
using FieldSource = CapturedConfig::FieldSource;

namespace {

/// The fields of a folder, found in the data.
class FieldFinder {
 public:
  FieldFinder(const CapturedConfig& config, std::shared_ptr<const ModelFolder> folder, const ModelSite& site)
      : config_(config), folder_(std::move(folder)), site_(site) {}

  /// Puts fields and loss into `list`. What the loss alone reads may be missing: then there is no such loss.
  void add_to(LayerList& list) const {
    check_names();
    if (folder_->loss) list.loss = make_captured_loss(folder_);
    for (const FolderField& field : folder_->fields) {
      const std::optional<BatchField> found = find(field);
      if (found) {
        list.fields.push_back(*found);
        continue;
      }
      const std::string why = fmt::format(
          "the model reads \"{}\" ({}) of the batch, and the data has {}; say "
          "{{\"name\": \"{}\", \"from\": ...}} or {{\"name\": \"{}\", \"fill\": ...}}",
          field.name, field.type.text(), data_list(), field.name, field.name);
      if (read_by_layers(field.name)) throw InputError(at("fields"), why);
      list.loss = nullptr;
      list.why_no_loss = why;
    }
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const {
    return {site_.place.file, site_.place.pointer + "/" + pointer};
  }

  void check_names() const {
    for (std::size_t i = 0; i < config_.fields.size(); ++i) {
      const std::string& name = config_.fields[i].name;
      std::vector<std::string> names;
      for (const FolderField& field : folder_->fields) names.push_back(field.name);
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      throw InputError(at(fmt::format("fields/{}/name", i)),
                       fmt::format("the model reads no field \"{}\"{}", name, did_you_mean(name, names)));
    }
  }

  bool read_by_layers(const std::string& name) const {
    return std::any_of(folder_->layers.begin(), folder_->layers.end(), [&](const auto& layer) {
      return std::find(layer.fields.begin(), layer.fields.end(), name) != layer.fields.end();
    });
  }

  std::optional<BatchField> find(const FolderField& field) const {
    for (std::size_t i = 0; i < config_.fields.size(); ++i) {
      const FieldSource& source = config_.fields[i];
      if (source.name != field.name) continue;
      if (source.from.empty()) return filled(field, source.fill);
      const InputPlace place = at(fmt::format("fields/{}/from", i));
      const std::optional<FieldSpec> spec = site_.sample.field(source.from);
      if (!spec) {
        throw InputError(place, fmt::format("the data has no field \"{}\"{}; it has {}", source.from,
                                            did_you_mean(source.from, data_names()), data_list()));
      }
      return taken(field, *spec, place);
    }
    const InputPlace place = at("fields");
    for (const std::string& name : {field.name, field.from.value_or("")}) {
      if (const std::optional<FieldSpec> spec = site_.sample.field(name)) return taken(field, *spec, place);
    }
    if (field.fill) return filled(field, *field.fill);
    return std::nullopt;
  }

  static BatchField filled(const FolderField& field, double fill) {
    return {field.name, "", fill, sample_shape(field), field.type.dtype};
  }

  static std::vector<std::int64_t> sample_shape(const FolderField& field) {
    const std::vector<std::int64_t> one = field.type.at(1);
    return {one.begin() + 1, one.end()};
  }

  static BatchField taken(const FolderField& field, const FieldSpec& spec, const InputPlace& place) {
    const bool numbers = c10::isFloatingType(spec.dtype);
    const std::vector<std::int64_t> wanted = sample_shape(field);
    if (!fits(spec.shape, wanted) || numbers != c10::isFloatingType(field.type.dtype)) {
      const bool needs_numbers = c10::isFloatingType(field.type.dtype);
      throw InputError(place, fmt::format("the model reads \"{}\" as {}, the data's \"{}\" is {} of shape {} "
                                          "without the samples' own dimension; it would take {} of shape {}",
                                          field.name, field.type.text(), spec.name,
                                          numbers ? "numbers" : "integers", shape_text(spec.shape),
                                          needs_numbers ? "numbers" : "integers", shape_text(wanted)));
    }
    return {field.name, spec.name, 0, wanted, field.type.dtype};
  }

  /// But for a last dimension of 1.
  static bool fits(std::vector<std::int64_t> shape, std::vector<std::int64_t> wanted) {
    if (shape.size() == wanted.size() + 1) wanted.push_back(1);
    if (wanted.size() == shape.size() + 1) shape.push_back(1);
    return shape == wanted;
  }

  std::vector<std::string> data_names() const {
    std::vector<std::string> names{"inputs"};
    if (site_.sample.field("targets")) names.emplace_back("targets");
    for (const FieldSpec& field : site_.sample.fields) {
      if (std::ranges::find(names, field.name) == names.end()) names.push_back(field.name);
    }
    return names;
  }
  std::string data_list() const { return fmt::format("{}", fmt::join(data_names(), ", ")); }

  const CapturedConfig& config_;
  std::shared_ptr<const ModelFolder> folder_;
  const ModelSite& site_;
};

/// What of the weights' file nobody reads: a file of another model, or of one with another head.
std::string note_on(const ModelFolder& folder) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::string> unread = folder.weights.unread();
  if (unread.empty()) return "";
  const std::size_t count = unread.size(), all = folder.weights.first()->size();
  if (count > kNamed) unread.resize(kNamed);
  return fmt::format("Weights: no layer reads {} of the {} tensors of {}: {}{}", count, all,
                     folder.weights.first()->path(), fmt::join(unread, ", "),
                     count > kNamed ? fmt::format(" and {} more", count - kNamed) : "");
}

/// What of the model, or of it on shorter samples, did not equal eager PyTorch when it was captured.
std::string note_on_differences(const ModelFolder& folder) {
  std::string differs = folder.differs;
  for (const auto& [length, shorter] : folder.shorter) {
    if (differs.empty() && !shorter->differs.empty())
      differs = fmt::format("on samples of {} {}", length, shorter->differs);
  }
  return differs.empty() ? ""
                         : fmt::format("Model: {} does not equal eager PyTorch, its manifest says: {}",
                                       folder.path, differs);
}

void add_line(std::string& text, const std::string& line) {
  text += text.empty() || line.empty() ? line : "\n" + line;
}

/// Errors name the key behind which the wrong file lies.
std::shared_ptr<const ModelFolder> read_folder(const CapturedConfig& config, const InputPlace& place) {
  try {
    return config.reader.read(config.path, config.weights, config.compiled.value_or(UseCompiled::off));
  } catch (const InputError& error) {
    const std::string_view said = error.what();
    const bool of_weights = !config.weights.empty() && said.starts_with(config.weights);
    throw InputError(json::detail::child(place, of_weights ? "weights" : "path"), said);
  }
}

}  // namespace

void describe(Fields& f, CapturedConfig::FieldSource& s) {
  f.required("name", s.name, "the model's name of the field", json::non_empty());
  f.optional("from", s.from,
             "the data set's field: inputs, targets or another; absent: every entry is `fill`");
  f.optional("fill", s.fill, "value of every entry, where `from` is absent");
}

void describe(Fields& f, CapturedConfig& c) {
  f.required("path", c.path, "model folder that stagecraft-capture made", json::non_empty());
  f.optional("fields", c.fields, "where fields of the batch come from, in place of what the folder says");
  f.optional("weights", c.weights,
             "safetensors file or folder of Hugging Face to start from (default: the model folder's)");
  f.optional("accumulate", c.accumulate, kAccumulateDoc);
  f.optional("compiled", c.compiled, kUseCompiledDoc);
}

LayerList expand(const CapturedConfig& config, const ModelSite& site) {
  const InputPlace path_place = json::detail::child(site.place, "path");
  require_there(config.path, path_place);
  if (!read_at_key(path_place, [&] { return is_model_folder(config.path); })) {
    throw InputError(path_place,
                     fmt::format("{} is {}; a model folder is needed here, which stagecraft-capture makes",
                                 config.path, kind_at(config.path)));
  }
  if (!config.weights.empty()) require_there(config.weights, json::detail::child(site.place, "weights"));
  const auto folder = read_folder(config, site.place);
  if (!takes(folder->input, site.sample)) {
    throw InputError(
        {site.place.file, site.place.pointer + "/path"},
        fmt::format("{} was captured for {}, this data has {} of shape {}, without the samples' own "
                    "dimension",
                    config.path, folder->input.text(), site.sample.dtype == at::kLong ? "tokens" : "numbers",
                    shape_text(site.sample.shape)));
  }
  LayerList list;
  list.name = folder->name;
  list.note = note_on_differences(*folder);
  if (!config.weights.empty()) add_line(list.note, note_on(*folder));
  if (folder->compiled != nullptr) {
    add_line(list.note, note_on(*folder->compiled));
    list.compiled_for = runs_for(*folder->compiled);
  }
  for (const captured::FolderLayer& layer : folder->layers) {
    list.layers.push_back({CapturedLayerSpec{config.path, layer.name, config.weights, config.accumulate,
                                             config.compiled, config.reader},
                           layer.name});
  }
  for (const auto& [length, shorter] : folder->shorter) list.shorter.push_back(length);
  FieldFinder(config, folder, site).add_to(list);
  return list;
}

}  // namespace stagecraft
