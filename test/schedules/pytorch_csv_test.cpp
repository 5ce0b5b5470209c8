#include "schedules/interchange/pytorch_csv.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_text.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace stagecraft {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// What torch 2.11 wrote (scripts/pytorch_schedules.py --keep).
std::string pytorch_file(const std::string& name) {
  return read_file(std::filesystem::path(STAGECRAFT_TEST_DATA) / "pytorch" / (name + ".csv"));
}

PytorchSchedule parse(const std::string& text) { return pytorch_schedule_from_csv(text, "a.csv"); }

std::string csv_error(const std::string& text) {
  try {
    (void)parse(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

/// A program's actions that PyTorch has words for, in their spelling.
std::vector<std::string> words(const std::vector<Action>& list) {
  static const std::map<Op, std::string> kWord{
      {Op::forward, "F"}, {Op::backward, "B"}, {Op::backward_input, "I"}, {Op::backward_weight, "W"}};
  std::vector<std::string> all;
  for (const Action& a : list) {
    const bool activation = a.tag.payload == Payload::activation;
    if (const auto word = kWord.find(a.op); word != kWord.end()) {
      all.push_back(fmt::format("{}{}{}", a.stage.value, word->second, a.micro_batch.value));
    } else if (a.op == Op::start_send && a.tag.payload != Payload::loss) {
      all.push_back(fmt::format("{}SEND_{}{}", a.tag.from.value, activation ? "F" : "B", a.tag.number));
    } else if (a.op == Op::post_receive && a.tag.payload != Payload::loss) {
      all.push_back(fmt::format("{}RECV_{}{}", a.tag.to.value, activation ? "F" : "B", a.tag.number));
    }
  }
  return all;
}

/// A file's cells in order, without idle ones and FSDP's, overlapped actions one after the other.
std::vector<std::vector<std::string>> cells(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    auto& row = rows.emplace_back();
    std::string cell;
    for (const char c : line + ",") {
      if (c != ',' && c != ';' && c != ')' && c != '\r') {
        if (c != '(') cell += c;
        continue;
      }
      if (!cell.empty() && cell != "OVERLAP_F_B" && !cell.ends_with("SHARD") &&
          !cell.ends_with("REDUCE_GRAD")) {
        row.push_back(cell);
      }
      cell.clear();
    }
  }
  return rows;
}

Proof prove_lowered(const std::string& text) { return check(lowered_program(parse(text))); }

std::string first_finding(const Proof& proof) {
  return proof.findings.empty() ? "accepted" : proof.findings.front().message;
}

/// Programs that the form can say: one rank per stage, one step.
std::vector<ScheduleProgram> expressible_programs() {
  std::vector<ScheduleProgram> all;
  std::vector<Placement> places = test::straight_placements();
  for (const Placement& odd : test::odd_placements()) {
    if (std::all_of(odd.ranks.begin(), odd.ranks.end(), [](const auto& r) { return r.size() == 1; })) {
      places.push_back(odd);
    }
  }
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous) continue;
    for (const Placement& place : places) {
      for (const int m : {1, 2, 3, 5, 8}) {
        try {
          all.push_back(schedule.generate({place, {m}}));
          // With its loss reports where a reader puts them: split() moves work before some.
          all.push_back(schedule_program(pytorch_schedule(test::split(all.back()))));
        } catch (const InputError&) {  // this schedule has other placements
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("PyTorch's files come back byte for byte", "[pytorch_csv]") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(STAGECRAFT_TEST_DATA "/pytorch")) {
    INFO(entry.path());
    const std::string text = read_file(entry.path());
    CHECK(to_csv(parse(text)) == text);
    ++files;
  }
  CHECK(files == 7);
}

TEST_CASE("a file's actions keep their order in both kinds of program", "[pytorch_csv]") {
  for (const char* name : {"Interleaved1F1B-p2-m4-v2", "DualPipeV-p2-m4-v2", "LoopedBFS-p2-m3-v2"}) {
    INFO(name);
    const std::string text = pytorch_file(name);
    const ScheduleProgram program = schedule_program(parse(text));
    const auto rows = cells(text);
    REQUIRE(program.ranks.size() == rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) CHECK(words(program.ranks[r]) == rows[r]);
  }
  for (const char* name :
       {"Interleaved1F1B-p2-m4-v2-comms", "ZBVZeroBubble-p3-m5-v2-comms", "DualPipeV-p2-m4-v2-comms"}) {
    INFO(name);
    const std::string text = pytorch_file(name);
    const LoweredProgram program = lowered_program(parse(text));
    const auto rows = cells(text);
    REQUIRE(program.ranks.size() == rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) CHECK(words(program.ranks[r]) == rows[r]);
    CHECK(first_finding(check(program)) == "accepted");
  }
}

TEST_CASE("the order that torch gives for 1F1B lacks a forward on the last rank", "[pytorch_csv]") {
  const ScheduleProgram program = schedule_program(parse(pytorch_file("1F1B-p4-m5-v1")));
  CHECK(words(program.ranks[3]) ==
        std::vector<std::string>{"3F1", "3B0", "3F2", "3B1", "3F3", "3B2", "3F4", "3B3", "3F5", "3B4"});
  const Proof proof = check(lower(program));
  CHECK(std::any_of(proof.findings.begin(), proof.findings.end(), [](const Finding& finding) {
    return finding.message == "rank 3: no forward of micro-batch 0 on stage 3; expected one";
  }));
}

TEST_CASE("ours to CSV and back is ours, for every registered schedule", "[pytorch_csv]") {
  const auto programs = expressible_programs();
  CHECK(programs.size() >= 120);
  for (ScheduleProgram program : programs) {
    INFO(to_text(program));
    program.schedule = "custom";
    const PytorchSchedule compute = pytorch_schedule(program);
    CHECK(parse(to_csv(compute)) == compute);
    CHECK(schedule_program(compute) == program);
    for (const SendWaits waits : {SendWaits::stated, SendWaits::left_out}) {
      const PytorchSchedule all = pytorch_schedule_with_communication(program, waits);
      CHECK(parse(to_csv(all)) == all);
      CHECK(schedule_program(all) == program);
      CHECK(all.has_communication() == (program.placement.world() > 1));
      CHECK(all.states_waits() == (program.placement.world() > 1 && waits == SendWaits::stated));
      CHECK(first_finding(check(lowered_program(all))) == "accepted");
    }
  }
}

TEST_CASE("each send of torch 2.15's has one wait, behind it", "[pytorch_csv]") {
  using Catch::Matchers::ContainsSubstring;
  const auto verdict = [](const std::string& first, const std::string& second) {
    return first_finding(check(lowered_program(parse(first + "\n" + second + "\n"))));
  };
  const std::string second = "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0";
  CHECK(verdict("0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0", second) == "accepted");
  CHECK(verdict("0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0", second) == "accepted");
  for (const char* wrong : {"0F0,0SEND_F0,0RECV_B0,0B0", "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0",
                            "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0WAIT_SEND_F0"}) {
    INFO(wrong);
    CHECK_THAT(verdict(wrong, second), ContainsSubstring("activation 0"));
  }
  // Each waits for what the other posts behind its own wait.
  CHECK(verdict("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0WAIT_SEND_F0,0WAIT_SEND_F1,0RECV_B1,0B1",
                "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B1") ==
        "accepted");
  CHECK_THAT(verdict("0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
                     "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B1"),
             ContainsSubstring("ranks 0, 1 wait for each other"));
  CHECK_THROWS_WITH(parse("0F0,0WAIT_SEND_B0\n1F0\n"), ContainsSubstring("stage 0 has no neighbour there"));
  CHECK(parse("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n").rows[0].size() == 4);
}

TEST_CASE("idle cells: everything comes in a later time step than what it needs", "[pytorch_csv]") {
  for (const ScheduleProgram& program : expressible_programs()) {
    INFO(to_text(program));
    const PytorchSchedule schedule = pytorch_schedule(program);
    std::map<std::pair<StageId, MicroBatch>, std::size_t> forward, backward;
    for (const auto& row : schedule.rows) {
      CHECK(row.back().op != PytorchOp::idle);
      for (std::size_t t = 0; t < row.size(); ++t) {
        const auto key = std::pair{row[t].stage, row[t].micro_batch};
        if (row[t].op == PytorchOp::forward) forward[key] = t;
        if (row[t].op == PytorchOp::backward || row[t].op == PytorchOp::backward_input) backward[key] = t;
      }
    }
    for (const auto& [key, t] : forward) {
      const auto before = forward.find({StageId{key.first.value - 1}, key.second});
      if (before != forward.end()) CHECK(before->second < t);
      CHECK(t < backward.at(key));
    }
    for (const auto& [key, t] : backward) {
      const auto before = backward.find({StageId{key.first.value + 1}, key.second});
      if (before != backward.end()) CHECK(before->second < t);
    }
  }
}

TEST_CASE("transfers between two ranks are sent and received in one order", "[pytorch_csv]") {
  for (const ScheduleProgram& program : expressible_programs()) {
    INFO(to_text(program));
    const LoweredProgram lowered = lowered_program(pytorch_schedule_with_communication(program));
    using Ends = std::pair<Rank, Rank>;
    std::map<Ends, std::vector<Tag>> sent, received;
    for (const auto& list : lowered.ranks) {
      for (const Action& a : list) {
        if (a.op != Op::start_send && a.op != Op::post_receive) continue;
        auto& side = a.op == Op::start_send ? sent : received;
        side[{lowered.placement.ranks[a.tag.from.index()][0], lowered.placement.ranks[a.tag.to.index()][0]}]
            .push_back(a.tag);
      }
    }
    CHECK(sent == received);
  }
}

TEST_CASE("a schedule with communication is judged as it stands", "[pytorch_csv]") {
  const std::string good =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  // Rank 0 sends its second activation before it takes the first gradient, which rank 1 sends before it takes
  // the second activation.
  CHECK(first_finding(prove_lowered(good)).starts_with("the program stands still after"));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const std::string posted =
      changed("1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,", "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,");
  CHECK(first_finding(prove_lowered(posted)) == "accepted");
  const auto finding = [&](const std::string& from, const std::string& to) {
    std::string text = posted;
    text.replace(text.find(from), from.size(), to);
    return first_finding(prove_lowered(text));
  };
  CHECK(finding("1RECV_F0,1F0", "1F0,1RECV_F0").find("needs the wait for") != std::string::npos);
  CHECK(finding("0SEND_F1,", "").find("this transfer has no start_send") != std::string::npos);
  CHECK(finding("0F0,", "0F0,0F0,").find("already done") != std::string::npos);
  CHECK(finding("0F0,0SEND_F0", "0SEND_F0,0F0").find("needs the forward that makes it") != std::string::npos);
  CHECK(finding("1RECV_F0", "1RECV_F0,1RECV_F0").find("already done") != std::string::npos);
  CHECK(finding("1B0,", "1W0,1I0,").find("needs its input part") != std::string::npos);
}

TEST_CASE("what a stage computes and neighbours on one rank need no transfers", "[pytorch_csv]") {
  const ScheduleProgram program = schedule_program(parse("0F0,1F0,1B0,0B0\r\n"));
  CHECK(to_text(program) ==
        "stagecraft program 1\nschedule custom\nkind train\nstages 0 0\ngroups 1\n"
        "rank 0: 0L0 0F0 1L0 1F0 1B0 0B0 0S0 1S0 0P0\n");
  CHECK(first_finding(prove_lowered("0F0,1F0,1B0,0B0\r\n")) == "accepted");
}

TEST_CASE("lenient where it loses nothing: blanks, quotes, no last line end", "[pytorch_csv]") {
  const PytorchSchedule schedule = parse(" 0F0 ,\"\",\"0B0\"");
  CHECK_FALSE(schedule.crlf);
  REQUIRE(schedule.rows.size() == 1);
  REQUIRE(schedule.rows[0].size() == 3);
  CHECK(schedule.rows[0][1] == PytorchAction{});
  CHECK(to_csv(schedule) == "0F0,,0B0\n");
  CHECK(to_csv(parse("0F0,0B0,\r\n")) == "0F0,0B0,\r\n");
}

TEST_CASE("a bad file is refused with line and cell", "[pytorch_csv]") {
  CHECK(csv_error("0F0,0B0\n1F0,1B0\n") == "no error");
  CHECK(csv_error("") == "a.csv: line 1: expected a rank's actions, found an empty file");
  for (const char* bad : {"0Q0", "F0", "0F", "0f0", "-1F0", "0F-1", "0F0x", "0F0 1F0", "99999999999F0",
                          "0F99999999999", "0UNSHARD3", "0SEND_F", "0", "x", "(0F0)", "0OVERLAP_F_B0"}) {
    INFO(bad);
    CHECK(csv_error(fmt::format("0F0,0B0\n1F0,{},1B0\n", bad))
              .starts_with("a.csv: line 2, cell 2: expected a"));
  }
  CHECK(csv_error("0F0,0BW0\n").starts_with("a.csv: line 1, cell 2: \"0BW0\": BW is an older spelling"));
  CHECK(csv_error("0F10000000\n") ==
        "a.csv: line 1, cell 1: 0F10000000: expected at most 10000000 micro-batches");
  for (const char* bad :
       {"(0F0)OVERLAP_F_B", "(0F0;0B0)", "(0F0;0B0", "(0F0;0B0)OVERLAP", "(0F0;)x", "()OVERLAP_F_B"}) {
    INFO(bad);
    CHECK(csv_error(bad).starts_with(
        "a.csv: line 1, cell 1: expected actions at once as (0F7;3B3)OVERLAP_F_B, found"));
  }
  CHECK(csv_error("(0F0;0UNSHARD)OVERLAP_F_B") ==
        "a.csv: line 1, cell 1: only forwards and backwards overlap, found \"(0F0;0UNSHARD)OVERLAP_F_B\"");
  CHECK(csv_error("0F0,0B0\n1F0,0B0\n") ==
        "a.csv: line 2, cell 2: stage 0 is computed in line 1 already; a stage lies on one rank");
  CHECK(csv_error("0F0,0B0\n2F0,2B0\n") == "a.csv: no rank computes stage 1, but line 2 computes stage 2");
  CHECK(csv_error("2147483647F0\n") ==
        "a.csv: no rank computes stage 0, but line 1 computes stage 2147483647");
  CHECK(csv_error("0F0\n\n") ==
        "a.csv: line 2: computes nothing; expected the actions of a rank, forwards or "
        "backwards among them");
  CHECK(csv_error("0F0,0SEND_F0\n1F0\n,,\n").starts_with("a.csv: line 3: computes nothing"));
  CHECK(csv_error("0F0,0SEND_F1\n1F0\n") ==
        "a.csv: line 1, cell 2: 0SEND_F1: micro-batch 1 is none of the 1 micro-batches");
  CHECK(csv_error("0F0\n1F0,0RECV_B0\n") == "a.csv: line 2, cell 2: 0RECV_B0: stage 0 is computed in line 1");
  CHECK(csv_error("0F0\n1F0,5UNSHARD\n") ==
        "a.csv: line 2, cell 2: 5UNSHARD: stage 5 is none of the 2 stages");
  CHECK(csv_error("0F0\n1F0,1SEND_F0\n") ==
        "a.csv: line 2, cell 2: 1SEND_F0: stage 1 has no neighbour there");
  CHECK(csv_error("0F0,1F0,1RECV_F0\n") ==
        "a.csv: line 1, cell 3: 1RECV_F0: stage 0 is on the same rank: nothing is sent");
  // Cells, not actions, are counted.
  CHECK(csv_error("(0F0;0F1)OVERLAP_F_B,,0SEND_F0\n").starts_with("a.csv: line 1, cell 3:"));
}

TEST_CASE("what the form cannot say is refused, and so is what stands still", "[pytorch_csv]") {
  const auto refusal_of = [](const std::string& text) -> std::string {
    const ScheduleProgram program = program_from_text("stagecraft program 1\n" + text, "x");
    try {
      (void)pytorch_schedule(program);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string one = "stages 0\ngroups 1\nrank 0: ";
  CHECK(refusal_of(one + "L0 F0 B0 S0 P0\n") == "no error");
  CHECK(refusal_of("kind validate\n" + one + "L0 F0 P0\n").find("validation is not one") !=
        std::string::npos);
  CHECK(refusal_of("stages 0\ngroups 2x1\nrank 0: F0\n").find("makes 2 steps") != std::string::npos);
  CHECK(refusal_of("stages 0,1\ngroups 2\nrank 0: F0\nrank 1: F1\n").find("stage 0 has 2 replicas") !=
        std::string::npos);
  CHECK(refusal_of(one + "L0 F0 R0 B0 S0 P0\n").find("a recompute has no word") != std::string::npos);
  CHECK(refusal_of("stages 0 1\ngroups 1\nrank 0: 1F0\nrank 1: 1F0\n").find("rank 0 computes stage 1") !=
        std::string::npos);
  CHECK(refusal_of("stages 0 1\ngroups 1\nrank 0: B0 F0\nrank 1: F0 B0\n")
            .find("stands still after 0 of its 4") != std::string::npos);
  CHECK(refusal_of("stages 0 1\ngroups 9000000\nrank 0: F0\nrank 1: F0 B0\n") ==
        "18000000 forwards are needed, but the program has 3 actions of the kind");
}

TEST_CASE("garbage is an InputError, and what is read is written and judged without a throw",
          "[pytorch_csv]") {
  REQUIRE(rc::check([] {
    const auto names = {"Interleaved1F1B-p2-m4-v2-comms", "ZBVZeroBubble-p3-m5-v2-comms",
                        "DualPipeV-p2-m4-v2"};
    std::string text =
        pytorch_file(*rc::gen::elementOf(std::vector<std::string>(names.begin(), names.end())));
    const int edits = *rc::gen::inRange(0, 5);
    for (int e = 0; e < edits && !text.empty(); ++e) {
      const auto at = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(text.size())));
      switch (*rc::gen::inRange(0, 4)) {
        case 0:
          text[at] = static_cast<char>(*rc::gen::inRange(0, 256));
          break;
        case 1: {  // a whole cell goes away
          const auto end = text.find(',', at);
          text.erase(at, end == std::string::npos ? 1 : end - at);
          break;
        }
        default:
          text.insert(at,
                      *rc::gen::element<std::string>("9", "9999999", "\n", ",", "(", ")", ";", ",0F0,", "W"));
      }
    }
    try {
      const PytorchSchedule schedule = parse(text);
      RC_ASSERT(parse(to_csv(schedule)) == schedule);
      (void)check(lowered_program(schedule));
      (void)check(lower(schedule_program(schedule)));
    } catch (const InputError& error) {
      RC_ASSERT(std::string(error.what()).starts_with("a.csv: "));
    }
  }));
}

}  // namespace stagecraft
