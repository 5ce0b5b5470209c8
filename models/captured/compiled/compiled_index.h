#pragma once

// What compiled/index.json of a model folder holds, by its keys (docs/reference/compiled_code.md).

#include "base/describe.h"
#include "base/json.h"
#include "models/captured/format/graph_values.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stagecraft::captured {

struct IndexRun {
  Part part = Part::forward;
  std::vector<std::int64_t> steps;
  std::vector<std::string> inputs, outputs;
  std::vector<std::vector<std::int64_t>> strides;
  std::string file;
};
template <class V>
void describe(V& v, IndexRun& r) {
  v.required("part", r.part, "of the graph");
  v.required("steps", r.steps, "that the code replaces, by their places in the part", json::non_empty());
  v.required("inputs", r.inputs, "values that the code reads", json::non_empty());
  v.required("strides", r.strides, "of each input");
  v.required("outputs", r.outputs, "values that it makes", json::non_empty());
  v.required("file", r.file, "one of `files`");
}

struct IndexGraph {
  std::string graph;
  std::int64_t samples = 0;
  std::vector<IndexRun> runs;
};
template <class V>
void describe(V& v, IndexGraph& g) {
  v.required("graph", g.graph, "file in graphs/, without .json");
  v.required("samples", g.samples, "of the micro-batch", json::at_least(1));
  v.required("runs", g.runs, "in the order of their steps; none: nothing of the graph gains by code");
}

struct Index {
  std::int64_t format = 0;
  std::string torch, device, capability;
  std::int64_t threads = 1;
  double difference = 0;
  std::map<std::string, std::string> files;
  std::vector<IndexGraph> graphs;
};
template <class V>
void describe(V& v, Index& i) {
  v.format(i.format, 1, "compiled code");
  v.required("torch", i.torch, "version that compiled it");
  v.required("device", i.device, "cpu");
  v.required("capability", i.capability, "of the processor, as LibTorch names it");
  v.required("threads", i.threads, "per rank", json::between(1, 1024));
  v.required("difference", i.difference,
             "largest of a result from that of its steps, of the largest number of the result",
             json::at_least(0));
  v.required("files", i.files, "SHA-256 of FILE.so, by FILE");
  v.required("graphs", i.graphs, "that were compiled");
}

}  // namespace stagecraft::captured
