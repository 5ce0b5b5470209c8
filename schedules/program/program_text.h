#pragma once

// Programs as text, for people.

#include "schedules/program/program.h"

#include <string>

namespace stagecraft {

/// The text form, made to be read and written by people:
///
///   stagecraft program 1
///   schedule pipedream
///   kind train
///   stages 0,1 2
///   groups 2x2 1
///   rank 0: L0 F0 L2 F2 B0 A0 S0 P0 L4 F4v1 B2 A1 S1 P1 B4v1 A2 S2 P2
///   rank 1: ...
///
/// Grammar (words separated by blanks, "#" begins a comment, empty lines are skipped):
///
///   file     = "stagecraft program 1" { header } { rank }       one line each
///   header   = "schedule" NAME                                  absent: custom
///            | "kind" ( "train" | "validate" )                  absent: train
///            | "stages" { RANK { "," RANK } }                   a word per stage: the ranks of its replicas
///            | "groups" { SIZE | COUNT "x" SIZE }               micro-batches of each accumulation
///            | "loads" { STAGE }                                stages that load besides the first and last
///            | "ties" { STAGE "," STAGE { "," STAGE } }         a word per tied weight: its stages
///            | "skips" { STAGE ">" STAGE }                      what goes directly to a stage behind the next
///            | "gradient_from" STAGE                            the first one with a trained weight; 0 where it is left out
///   rank     = "rank" RANK ":" { action }                       one line for every rank
///   action   = [ STAGE ] LETTER NUMBER [ "v" VERSION ]
///   LETTER   = L load, F forward, I backward_input, W backward_weight, B backward, R recompute (NUMBER is
///              the micro-batch); A reduce, N agree_norm, S step, P report_loss (NUMBER is the group)
///
/// STAGE may be left out where the rank holds one stage; N has none. VERSION is the version of the weights
/// read, for F, I, W, B, R and S; left out it is 0, and for S the group's number. The group of a micro-batch
/// follows from the header.
[[nodiscard]] std::string to_text(const ScheduleProgram& program);
/// Throws InputError with `file` and the line: malformed words, numbers outside the program, anything said
/// twice, a rank without a line. Whether the program makes sense is the checker's question.
[[nodiscard]] ScheduleProgram program_from_text(const std::string& text, const std::string& file);

/// The same of a lowered program, one action a line, for debugging and goldens; not read back.
[[nodiscard]] std::string to_text(const LoweredProgram& program);

}  // namespace stagecraft
