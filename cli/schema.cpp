// `stagecraft schema KIND`: the JSON Schema of a kind of file.

#include "base/json.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/run_schema.h"
#include "partitioner/advice/explain.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <array>
#include <memory>

namespace stagecraft::cli {
namespace {

struct FileKind {
  const char* name;
  const char* what;
  Json (*schema)();
};

constexpr std::array kFileKinds{
    FileKind{"profile", "what each layer costs: profile writes it, plan reads it",
             [] { return json::schema_of<Profile>(); }},
    FileKind{"cluster", "devices, links and memory, which plan reads",
             [] { return json::schema_of<Cluster>(); }},
    FileKind{"plan", "stages, schedule and prediction: plan writes it, train runs it",
             [] { return json::schema_of<Plan>(); }},
    FileKind{"explanation", "what explain --json has under \"explanation\"",
             [] { return json::schema_of<Explanation>(); }},
    FileKind{"run", "run.json, which train, profile and plan read (in a build with the engine)", run_schema},
};

std::string list_text() {
  std::string text;
  for (const FileKind& kind : kFileKinds) text += fmt::format("  {:<12} {}\n", kind.name, kind.what);
  return text;
}

void run(const std::string& name) {
  if (name.empty()) return print("`stagecraft schema KIND` prints the JSON Schema of:\n" + list_text());
  for (const FileKind& kind : kFileKinds) {
    if (name == kind.name) print_json(kind.schema());
  }
}

}  // namespace

void add_schema(CLI::App& app) {
  const auto name = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("schema", "print the JSON Schema of a kind of file, or list the kinds");
  std::vector<std::string> names;
  for (const FileKind& kind : kFileKinds) names.emplace_back(kind.name);
  only(verb->add_option("KIND", *name, "which kind of file (default: all are listed)")->type_name("KIND"),
       names);
  verb->footer("Kinds:\n" + list_text());
  verb->callback([name] { run(*name); });
}

}  // namespace stagecraft::cli
