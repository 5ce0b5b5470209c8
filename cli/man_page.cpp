// `stagecraft man` (hidden): stagecraft(1) in roff, made from the command's own options. The build installs it.

#include "base/files.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/help_format.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/schedule_option.h"
#include "cli/shown_options.h"
#include "schedules/generators/registry.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

namespace stagecraft::cli {
namespace {

/// Text as roff shows it: no hyphen that breaks a line or becomes a dash, no line taken for a request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += "\\&";
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string item(const std::string& term, const std::string& text) {
  return fmt::format(".TP\n{}\n{}\n", term, roff(text));
}

/// As manual pages have their headings.
std::string capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + roff(text) + "\\fR"; }

std::string option_item(const CLI::Option& option) {
  if (option.get_positional()) return item(italic(option.get_name(true, false)), description_of(option));
  const std::string value = value_name_of(option);
  return item(bold(names_of(option)) + (value.empty() ? "" : " " + italic(value)), description_of(option));
}

std::string usage(const CLI::App& verb) {
  std::string line = bold("stagecraft " + verb.get_name());
  for (const CLI::Option* option :
       verb.get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    const std::string name = italic(option->get_name(true, false));
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line + " [" + italic("OPTIONS") + "]";
}

std::string verb_text(const CLI::App& verb) {
  std::string text =
      fmt::format(".SS {}\n{}\n.PP\n{}.\n", roff(verb.get_name()), usage(verb), roff(verb.get_description()));
  for (const CLI::Option* option : shown_options(verb)) {
    if (option != verb.get_help_ptr()) text += option_item(*option);
  }
  return text;
}

std::string schedule_items() {
  std::string text;
  for (const Schedule& schedule : schedules()) {
    const std::vector<std::string> settings = settings_of(schedule);
    text += item(bold(schedule.name),
                 fmt::format("{} ({}){}", schedule.summary, schedule.paper,
                             settings.empty() ? "" : fmt::format("; takes {}", fmt::join(settings, ", "))));
  }
  return text;
}

const std::pair<const char*, const char*> kFiles[]{
    {"run.json", "a run configuration: model, data, optimizer, pipeline"},
    {"profile.json", "what each layer costs"},
    {"cluster.json", "devices, links and memory"},
    {"plan.json", "stages, schedule and prediction"},
    {"RUN_DIR", "what a run leaves: config, plan, metrics, timeline, summary, checkpoints"},
};

std::string man_page(const CLI::App& app) {
  std::string text = ".TH STAGECRAFT 1 \"\" \"" + app.version() +
                     "\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\nstagecraft \\- " +
                     roff("pipeline-parallel training: profile, plan, prove, train, report") +
                     "\n.SH SYNOPSIS\n.B stagecraft\n.I VERB\n[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n" +
                     roff(app.get_description()) + "\n";
  std::string group;
  for (const CLI::App* verb : shown_verbs(app)) {
    if (verb->get_group() != group) text += ".SH " + roff(capitals(group = verb->get_group())) + "\n";
    text += verb_text(*verb);
  }
  text += ".SH SCHEDULES\n" + schedule_items() + ".SH EXIT STATUS\n";
  for (const ExitCode& exit : exit_codes()) text += item(bold(std::to_string(exit.code)), exit.meaning);
  text += ".SH FILES\n";
  for (const auto& [name, what] : kFiles) text += item(italic(name), what);
  return text + ".PP\n" + roff("`stagecraft schema KIND` prints the JSON Schema of each.") + "\n";
}

}  // namespace

void add_man(CLI::App& app) {
  const auto output = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("man", "print the manual page of this command")->group("");
  verb->add_option("-o,--output", *output, "where it goes (default: standard output)")
      ->type_name("FILE")
      ->group("Output");
  verb->callback([output, &app] {
    if (output->empty()) {
      print(man_page(app));
    } else {
      write_output(*output, man_page(app));
    }
  });
}

}  // namespace stagecraft::cli
