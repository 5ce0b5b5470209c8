#pragma once

// What manifest.json of a model folder holds (docs/reference/model_folder.md), by its keys. How they fit
// together, model_folder.cpp looks at.

#include "base/json.h"
#include "models/losses/loss.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::captured {

struct ManifestLayer {
  std::string name, graph;
  std::optional<std::vector<std::string>> in, out;
  std::vector<std::string> parameters, buffers, constants, fields;
};
template <class V>
void describe(V& v, ManifestLayer& l) {
  v.required("name", l.name, "unique", json::non_empty());
  v.required("graph", l.graph, "file in graphs/, without .json");
  v.optional("in", l.in, "values that it reads; absent: the one value that goes on before it");
  v.optional("out", l.out, "values that it makes; absent: one, of the layer's name");
  v.required("parameters", l.parameters, "PyTorch's names");
  v.required("buffers", l.buffers, "PyTorch's names");
  v.required("constants", l.constants, "names of constants");
  v.optional("fields", l.fields, "names of fields of the batch");
}

struct ManifestField {
  std::string type;
  std::optional<std::string> from;
  std::optional<double> fill;
};
template <class V>
void describe(V& v, ManifestField& f) {
  v.required("type", f.type, "of a micro-batch");
  v.optional("from", f.from, "the data set's field, where nobody says otherwise");
  v.optional("fill", f.fill, "the value of all entries, where the data set has no such field");
}

struct ManifestUnits {
  std::string field;
  std::int64_t ignore = 0, from = 0;
};
template <class V>
void describe(V& v, ManifestUnits& u) {
  v.required("field", u.field, "whose entries are counted");
  v.required("ignore", u.ignore, "the entry that does not count");
  v.optional("from", u.from, "entries of the last dimension left out at its beginning", json::at_least(0));
}

struct ManifestLoss {
  std::string graph;
  std::vector<std::string> fields, constants, terms;
  Reduction reduction = Reduction::mean;
  std::optional<ManifestUnits> units;
  bool of_whole_batch = false;
};
template <class V>
void describe(V& v, ManifestLoss& l) {
  v.required("graph", l.graph, "file in graphs/, without .json");
  v.required("fields", l.fields, "names of fields of the batch");
  v.required("constants", l.constants, "names of constants");
  v.optional("terms", l.terms, "names of the numbers that the graph makes behind the loss");
  v.optional("reduction", l.reduction, "mean or sum");
  v.optional("units", l.units, "what micro-batches weigh; absent: their samples");
  v.optional("of_whole_batch", l.of_whole_batch,
             "whether a batch's loss is another than what its micro-batches' add up to");
}

struct Checked {
  std::string output, evaluation;
  std::optional<std::string> loss, terms;
  std::int64_t gradients = 0, equal = 0, buffers = 0, buffers_equal = 0;
  double worst = 0;
  std::optional<std::string> of;
};
template <class V>
void describe(V& v, Checked& c) {
  v.required("output", c.output, "how the output compared with PyTorch's");
  v.optional("loss", c.loss, "how the model's own loss compared");
  v.optional("terms", c.terms, "how the loss's terms compared");
  v.required("evaluation", c.evaluation, "how the output in evaluation compared");
  v.required("gradients", c.gradients, "compared", json::at_least(0));
  v.required("equal", c.equal, "of them, to the bit", json::at_least(0));
  v.required("buffers", c.buffers, "compared", json::at_least(0));
  v.required("buffers_equal", c.buffers_equal, "of them, to the bit", json::at_least(0));
  v.required("worst", c.worst, "largest difference of one", json::at_least(0));
  v.optional("of", c.of, "what was compared, where it is not the model itself");
}

struct Manifest {
  std::int64_t format = 0;
  std::string name, torch;
  std::vector<std::int64_t> sizes;
  std::string input, output;
  std::map<std::string, ManifestField> fields;
  std::vector<ManifestLayer> layers;
  std::optional<ManifestLoss> loss;
  std::map<std::string, std::string> weights, untrained, same_as;
  std::string prefix;
  std::map<std::string, std::vector<std::int64_t>> memory_orders;
  std::vector<std::string> parameter_order;
  bool weights_stored = true;
  std::vector<std::int64_t> shorter;
  std::optional<Checked> checked;
};
template <class V>
void describe(V& v, Manifest& m) {
  v.format(m.format, 2, "model folders");
  v.required("name", m.name, "of the model");
  v.required("torch", m.torch, "version that captured it");
  v.required("sizes", m.sizes, "micro-batch sizes compared with PyTorch", json::non_empty());
  v.required("input", m.input, "type");
  v.required("output", m.output, "type");
  v.optional("fields", m.fields, "fields of the batch that layers and the loss read");
  v.required("layers", m.layers, "in order", json::non_empty());
  v.optional("loss", m.loss, "of the model's own");
  v.required("weights", m.weights, "types by name");
  v.optional("untrained", m.untrained, "types of what no layer trains, by name");
  v.optional("same_as", m.same_as, "a second name of a tensor: the first");
  v.optional("prefix", m.prefix, "of all names but the head's, which files without a head leave out");
  v.optional("memory_orders", m.memory_orders,
             "dimensions of weights that lie otherwise in PyTorch than files hold them, outermost first");
  v.optional("parameter_order", m.parameter_order,
             "all parameters as PyTorch's parameters() has them, where that is not the order of layers");
  v.optional("weights_stored", m.weights_stored, "false: it was captured without weights");
  v.optional("shorter", m.shorter, "lengths that samples may be cut to, each with a manifest.LENGTH.json");
  v.optional("checked", m.checked, "what the capture saw; absent or null: it was not checked");
}

}  // namespace stagecraft::captured
