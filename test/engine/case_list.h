#pragma once

// The pipelined runs that are held against the oracle.

#include "test/engine/pipeline_case.h"

#include <vector>

namespace stagecraft::test {

/// On the placement that the schedule is for, with a number of micro-batches that is no multiple of the ranks.
[[nodiscard]] PipelineCase at_home(const Schedule& schedule, int ranks);

/// {fill_drain, 1f1b, pipedream, pipedream with vertical sync} x batch shapes x optimizers x clipping where allowed
/// x models, a stage per rank, dropout and precisions in turn; and every registered schedule, on the placements it is
/// for, x stages per rank x rewrites and recomputation, each with two of the four batch shapes, models in turn; and
/// with replicas; and captured_cases.
[[nodiscard]] std::vector<PipelineCase> all_cases(int ranks);

/// Of the cases as few as have what they have, or all where test::full():
/// pairs: each pair of values of two of a case's dimensions (schedule with its options, stages of a rank, ranks with their replicas, rewrite
/// with recomputation, shape, model, optimizer, precision, dropout, clipping, frozen layers); each schedule on the placement it
/// is for as it was generated at each number of ranks, and with each kind of model.
/// values: each value, each layout of stages on ranks, and each schedule with each number of frozen layers.
enum class Cover { pairs, values };
[[nodiscard]] std::vector<PipelineCase> covering(Cover cover, const std::vector<PipelineCase>& cases);
/// The same of all_cases() of these numbers of ranks together.
[[nodiscard]] std::vector<PipelineCase> covering(Cover cover, const std::vector<int>& ranks);

/// A model captured from PyTorch with every registered schedule, on the placement it is for, x rewrites and
/// recomputation, and with replicas.
[[nodiscard]] std::vector<PipelineCase> captured_cases(int ranks);
/// The same of the model with tied weights, under the schedules that can run it.
[[nodiscard]] std::vector<PipelineCase> tied_cases(int ranks);
/// The same of a captured model whose samples are cut to several lengths.
[[nodiscard]] std::vector<PipelineCase> lengths_cases(int ranks);

/// A value that goes directly to the next stage but one, under every schedule that takes skips, on the placement
/// it is for; and again recomputed, with replicas where a rank has one stage.
[[nodiscard]] std::vector<PipelineCase> skip_cases();

/// Every registered schedule with frozen first layers: few of them, half and nearly all, on the placement it is for,
/// rewritten, recomputed and with replicas; models, shapes, optimizers and precisions in turn.
[[nodiscard]] std::vector<PipelineCase> frozen_cases(int ranks);

/// Every registered schedule with a slow rank, and with a slow replica where there can be one.
[[nodiscard]] std::vector<PipelineCase> straggler_cases(int ranks);

}  // namespace stagecraft::test
