#include "base/error.h"
#include "base/files.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/input_program.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <string>

namespace stagecraft::cli {
namespace {

enum class Form { text, json, csv, csv_comms, csv_comms_2_11 };

Form form_named(const std::string& name) {
  if (name == "json") return Form::json;
  if (name == "csv") return Form::csv;
  if (name == "csv-comms") return Form::csv_comms;
  return name == "csv-comms-2.11" ? Form::csv_comms_2_11 : Form::text;
}

struct ConvertOptions {
  std::string path;
  std::string out;
  InputRequest request;
  std::string form;  ///< empty: by the output's name
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

std::string converted(const InputProgram& input, Form form) {
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
  }
  return {};
}

void run(const ConvertOptions& options) {
  const InputProgram input = read_input(options.path, options.request);
  const std::string text = [&] {
    try {
      return converted(input, form_of(options, input));
    } catch (const InputError& error) {
      throw InputError({options.path, ""}, error.what());
    } catch (const RefusedError& error) {
      throw RefusedError(fmt::format("{}: {}", options.path, error.what()));
    }
  }();
  if (options.out.empty()) {
    print(text);
  } else {
    write_output(options.out, text, options.path);
  }
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb =
      app.add_subcommand("convert", "write a schedule in another form: text, JSON, PyTorch's CSV");
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
               "text, json, csv (PyTorch's, compute only), csv-comms (with sends, receives and waits) or "
               "csv-comms-2.11 (without waits, which torch 2.11 does not know) "
               "(default: by the output's name, or text)")
           ->type_name("FORM")
           ->group("Output"),
       {"text", "json", "csv", "csv-comms", "csv-comms-2.11"});
  verb->add_option("-o,--output", options->out, "where it goes (default: standard output)")
      ->type_name("FILE")
      ->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
