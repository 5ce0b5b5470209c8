#include "base/error.h"
#include "base/text.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/input_program.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "partitioner/plan/decoder_parts.h"
#include "partitioner/plan/one_pipeline.h"
#include "partitioner/plan/profile.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::cli {
namespace {

enum class Form { text, json, csv, csv_comms, csv_comms_2_11, megatron, torchtitan };

Form form_named(const std::string& name) {
  if (name == "json") return Form::json;
  if (name == "csv") return Form::csv;
  if (name == "csv-comms") return Form::csv_comms;
  if (name == "csv-comms-2.11") return Form::csv_comms_2_11;
  if (name == "megatron") return Form::megatron;
  return name == "torchtitan" ? Form::torchtitan : Form::text;
}

const char* words_of(Form form) {
  switch (form) {
    case Form::text:
      return "a schedule as text";
    case Form::json:
      return "a schedule as JSON";
    case Form::csv:
      return "a schedule as PyTorch's CSV";
    case Form::csv_comms:
      return "a schedule as PyTorch's CSV, with sends, receives and waits";
    case Form::csv_comms_2_11:
      return "a schedule as PyTorch's CSV, with sends and receives";
    case Form::megatron:
      return "for Megatron-LM's --pipeline-model-parallel-layout";
    case Form::torchtitan:
      break;
  }
  return "for torchtitan's module_fqns_per_model_part";
}

struct ConvertOptions {
  std::string path;
  std::string out;
  InputRequest request;
  std::string form;     ///< empty: by the output's name
  std::string profile;  ///< which has the names of a plan's layers
};

Form form_of(const PytorchSchedule& schedule) {
  if (!schedule.has_communication()) return Form::csv;
  return schedule.states_waits() ? Form::csv_comms : Form::csv_comms_2_11;
}

/// What is asked for, or what the name of the output says: a CSV of PyTorch's stays in its form.
Form form_of(const ConvertOptions& options, const InputProgram& input) {
  if (!options.form.empty()) return form_named(options.form);
  if (options.out.ends_with(".json")) return Form::json;
  if (!options.out.ends_with(".csv")) return Form::text;
  return input.pytorch ? form_of(*input.pytorch) : Form::csv;
}

bool is_csv(Form form) {
  return form == Form::csv || form == Form::csv_comms || form == Form::csv_comms_2_11;
}

/// Which layers make the stages; which order they run in is the other framework's.
bool is_layout(Form form) { return form == Form::megatron || form == Form::torchtitan; }

std::string layout(const ConvertOptions& options, const InputProgram& input, Form form) {
  const InputPlace place{options.path, ""};
  if (!input.plan) throw InputError(place, "is a schedule; which layers its stages have is in the plan");
  if (options.profile.empty()) {
    throw InputError(
        fmt::format("convert: --to {} needs --profile, which has the names of the layers", options.form));
  }
  const Profile profile = read_profile(options.profile);
  std::vector<std::string> names;
  for (const LayerProfile& layer : profile.measurements.front().layers) names.push_back(layer.name);
  const DecoderParts parts =
      decoder_parts(*input.plan, names, place, {options.profile, "/measurements/0/layers"});
  return (form == Form::megatron ? megatron_layout(parts, place) : torchtitan_parts(parts)) + "\n";
}

/// Of a plan whose stages have replicas, the schedule of one pipeline: PyTorch replicates it as a whole.
InputProgram one_of_equal(const ConvertOptions& options, InputProgram input) {
  if (!input.plan || input.plan->stages.front().ranks.size() == 1 || input.plan->program) return input;
  const int replicas = static_cast<int>(input.plan->stages.front().ranks.size());
  Plan plan = one_pipeline(*input.plan, {"", ""});
  if (plan.micro_batches % replicas != 0) {
    throw InputError(fmt::format(
        "PyTorch replicates whole pipelines, and {} micro-batches per step are not the same number for "
        "each of {}: give another --micro-batches",
        plan.micro_batches, replicas));
  }
  plan.micro_batches /= replicas;
  note(fmt::format("{}: the schedule of one of {} equal pipelines, each with {} per step", options.path,
                   replicas, plural(plan.micro_batches, "micro-batch")));
  return plan_input(options.path, std::move(plan), {});
}

std::string converted(const ConvertOptions& options, InputProgram input, Form form) {
  if (is_csv(form)) input = one_of_equal(options, std::move(input));
  if (input.pytorch && form_of(*input.pytorch) == form) return to_csv(*input.pytorch);
  switch (form) {
    case Form::text:
      return to_text(input.program);
    case Form::json:
      return json_text(to_json(input.program));
    case Form::csv:
      return to_csv(pytorch_schedule(input.program));
    case Form::csv_comms:
      return to_csv(pytorch_schedule_with_communication(input.program));
    case Form::csv_comms_2_11:
      return to_csv(pytorch_schedule_with_communication(input.program, SendWaits::left_out));
    case Form::megatron:
    case Form::torchtitan:
      break;  // above
  }
  return {};
}

void run(const ConvertOptions& options) {
  const InputProgram input = read_input(options.path, options.request);
  const Form form = form_of(options, input);
  if (!options.profile.empty() && !is_layout(form))
    throw InputError("convert: --profile is for --to megatron and --to torchtitan");
  const std::string text = [&] {
    if (is_layout(form)) return layout(options, input, form);
    try {
      return converted(options, input, form);
    } catch (const InputError& error) {
      throw InputError({options.path, ""}, error.what());
    } catch (const RefusedError& error) {
      throw RefusedError(fmt::format("{}: {}", options.path, error.what()));
    }
  }();
  if (options.out.empty()) {
    print_document(text);
  } else {
    write_output(options.out, text, options.path);
    print_written(options.out, words_of(form));
  }
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb =
      app.add_subcommand("convert",
                         "write a schedule in another form: text, JSON, PyTorch's CSV; or a plan's cuts for "
                         "Megatron-LM and torchtitan");
  verb->add_option(
          "FILE", options->path,
          "plan.json, run.json for the plan that train would make of it, or a schedule as text, JSON or "
          "PyTorch's CSV")
      ->type_name("FILE")
      ->required();
  verb->add_option("--micro-batches", options->request.micro_batches,
                   "micro-batches per step (default: the plan's)")
      ->check(from_to(1, kMostMicroBatches))
      ->type_name("N")
      ->group("The step");
  only(verb->add_option(
               "--to", options->form,
               "text, json, csv (PyTorch's, compute only), csv-comms (with sends, receives and waits), "
               "csv-comms-2.11 (without waits, which torch 2.11 does not know); of a plan of a decoder: "
               "megatron "
               "(--pipeline-model-parallel-layout) or torchtitan (module_fqns_per_model_part) "
               "(default: by the output's name, or text)")
           ->type_name("FORM")
           ->group("Output"),
       {"text", "json", "csv", "csv-comms", "csv-comms-2.11", "megatron", "torchtitan"});
  verb->add_option("--profile", options->profile, "profile.json of the plan's model: megatron and torchtitan")
      ->type_name("FILE")
      ->group("Output");
  verb->add_option("-o,--output", options->out, "where it goes (default: standard output)")
      ->type_name("FILE")
      ->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
