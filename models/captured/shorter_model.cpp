#include "models/captured/shorter_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace stagecraft::captured {
namespace {

class Comparison {
 public:
  Comparison(const ModelFolder& whole, std::int64_t length, InputPlace place)
      : whole_(whole), length_(length), place_(std::move(place)) {}

  void run(const ModelFolder& shorter) const {
    const std::vector<AffineSize>& sizes = whole_.input.sizes;
    if (sizes.size() < 2 || sizes[1].depends_on_b()) {
      refuse("/input", fmt::format("the model reads {}, which has no length", whole_.input.text()));
    }
    if (length_ < 1 || length_ >= sizes[1].plus) {
      refuse("/input", fmt::format("expected a length from 1 to {}", sizes[1].plus - 1));
    }
    require_cut(whole_.input, shorter.input, "/input");
    fields(shorter);
    require(shorter.layers.size() == whole_.layers.size(), "/layers",
            fmt::format("expected {} layers, found {}", whole_.layers.size(), shorter.layers.size()));
    for (std::size_t i = 0; i < whole_.layers.size(); ++i) {
      layer(whole_.layers[i], shorter.layers[i], fmt::format("/layers/{}", i));
    }
    loss(shorter);
  }

 private:
  [[noreturn]] void refuse(const std::string& pointer, const std::string& why) const {
    throw InputError({place_.file, pointer},
                     fmt::format("is not the model of manifest.json on samples of {}: {}", length_, why));
  }
  void require(bool holds, const std::string& pointer, const std::string& why) const {
    if (!holds) refuse(pointer, why);
  }

  /// As SampleSpec::cut.
  void require_cut(ValueType type, const ValueType& found, const std::string& pointer) const {
    if (type.sizes.size() > 1 && type.sizes[1] == whole_.input.sizes[1]) type.sizes[1] = {0, length_};
    require(type == found, pointer, fmt::format("expected {}, found {}", type.text(), found.text()));
  }

  void fields(const ModelFolder& shorter) const {
    for (const FolderField& field : whole_.fields) {
      const auto found = std::find_if(shorter.fields.begin(), shorter.fields.end(),
                                      [&](const FolderField& other) { return other.name == field.name; });
      require(found != shorter.fields.end(), "/fields", fmt::format("\"{}\" is missing", field.name));
      const std::string pointer = "/fields/" + field.name;
      require_cut(field.type, found->type, pointer + "/type");
      require(found->from == field.from && found->fill == field.fill, pointer,
              "it comes from elsewhere there");
    }
    require(shorter.fields.size() == whole_.fields.size(), "/fields",
            fmt::format("expected {}, found {}", whole_.fields.size(), shorter.fields.size()));
  }

  void layer(const FolderLayer& one, const FolderLayer& other, const std::string& pointer) const {
    require(one.name == other.name, pointer + "/name",
            fmt::format("expected \"{}\", found \"{}\"", one.name, other.name));
    require(one.parameters == other.parameters, pointer + "/parameters", "the layer has others there");
    require(one.buffers == other.buffers, pointer + "/buffers", "the layer has others there");
    require(one.fields == other.fields, pointer + "/fields", "the layer reads others there");
    require(one.reads == other.reads, pointer + "/in", "the layer reads other values there");
    const auto alike = [](const ValueBehind& a, const ValueBehind& b) {
      return a.made == b.made && a.index == b.index && a.type.dtype == b.type.dtype;
    };
    require(std::equal(one.behind.begin(), one.behind.end(), other.behind.begin(), other.behind.end(), alike),
            pointer + "/out", "other values go on behind the layer there");
    const Graph &its = one.replay->graph(), &others = other.replay->graph();
    require(its.parameters == others.parameters && its.buffers == others.buffers, pointer + "/graph",
            "its parameters or buffers are of other types");
    require(!confusable(one, other), pointer + "/graph",
            "it reads what the longer one reads, and differs from it");
  }

  void loss(const ModelFolder& shorter) const {
    require(shorter.loss.has_value() == whole_.loss.has_value(), "/loss",
            whole_.loss ? "is missing" : "the longer one has none");
    if (!whole_.loss) return;
    const FolderLoss &one = *whole_.loss, &other = *shorter.loss;
    require(one.fields == other.fields, "/loss/fields", "the loss reads others there");
    require(one.terms == other.terms, "/loss/terms", "the loss has others there");
    require(one.of_whole_batch == other.of_whole_batch, "/loss/of_whole_batch", "the loss has another there");
    require(one.reduction == other.reduction, "/loss/reduction", "the loss has another there");
    require(one.units == other.units, "/loss/units", "the loss counts others there");
  }

  const ModelFolder& whole_;
  std::int64_t length_;
  InputPlace place_;
};

}  // namespace

bool confusable(const FolderLayer& one, const FolderLayer& other) {
  const Graph &its = one.replay->graph(), &others = other.replay->graph();
  const bool same = its.hash == others.hash && one.constants == other.constants;
  const bool told_by_fields = its.fields != others.fields && its.outputs == others.outputs;
  return !same && its.inputs == others.inputs && !told_by_fields;
}

void check_shorter(const ModelFolder& whole, const ModelFolder& shorter, std::int64_t length,
                   const InputPlace& place) {
  Comparison(whole, length, place).run(shorter);
}

}  // namespace stagecraft::captured
