// See select.h. Two rounds over the threads: pieces of the units are scored, then each job chooses.
#include "cpu/select/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "cpu/attention/item.h"
#include "cpu/select/key_row.h"
#include "cpu/select/score.h"

namespace fovea::cpu {
namespace {

constexpr std::int64_t kUnitsPerPiece = 256;

Status check_job(const SelectJob& job, const TensorView& q, const abi::KvPoolView& pool,
                 const abi::PageStatsView& stats, std::int32_t heads) {
  if (job.policy == nullptr || job.chosen == nullptr || job.pages == nullptr || job.tokens < 1) {
    return invalid_argument("a selection job lacks policy, lists, pages or tokens");
  }
  if (job.rows < 1 || job.mean_rows < 1) {
    return invalid_argument("a selection for {} queries by means of {}, expected 1 or more", job.rows, job.mean_rows);
  }
  if (job.row < 0 || job.row + std::int64_t{job.rows} > q.shape[0] || job.head < 0 || job.head >= heads) {
    return out_of_range("a selection of rows [{}, {}) and KV head {}, expected below {} and {}", job.row,
                        job.row + std::int64_t{job.rows}, job.head, q.shape[0], heads);
  }
  if (job.rule.unit_tokens != job.policy->unit_tokens) {
    return invalid_argument("units of {} tokens for the policy {}, which has {}", job.rule.unit_tokens,
                            job.policy->name, job.policy->unit_tokens);
  }
  if (job.policy->stat != abi::StatKind::kNone && job.policy->stat != stats.kind) {
    return invalid_argument("policy {} reads statistics of kind {}, the pages carry {}", job.policy->name,
                            static_cast<int>(job.policy->stat), static_cast<int>(stats.kind));
  }
  const bool codes = stats.kind == abi::StatKind::kCodes || stats.kind == abi::StatKind::kLocalCodes;
  if (codes &&
      (stats.head_dim < abi::kCodeChannels || (stats.kind == abi::StatKind::kCodes && stats.codes == nullptr))) {
    return invalid_argument("statistics of codes for head_dim {}, or without what was learned", stats.head_dim);
  }
  const std::int32_t last_page = (job.tokens - 1) / pool.page_tokens;
  for (std::int32_t i = 0; i <= last_page; ++i) {
    if (job.pages[i] < 0 || job.pages[i] >= pool.num_pages) {
      return out_of_range("page {} of a request is {}, the pool has {}", i, job.pages[i], pool.num_pages);
    }
  }
  return ok_status();
}

// Logarithms of mass of several query heads, as shares of each head's whole: the largest share of a unit into row 0.
void join_masses(float* scores, std::int32_t group, std::int64_t units) {
  for (std::int32_t g = 0; g < group; ++g) {
    float* row = scores + g * units;
    float top = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < units; ++i) top = std::max(top, row[i]);
    double whole = 0.0;
    for (std::int64_t i = 0; i < units; ++i) whole += std::exp(double{row[i]} - top);
    const auto shift = static_cast<float>(top + std::log(whole));
    for (std::int64_t i = 0; i < units; ++i) scores[i] = g == 0 ? row[i] - shift : std::max(scores[i], row[i] - shift);
  }
}

}  // namespace

void SelectWorkspace::prepare(const TensorView& q, float sm_scale, const abi::PageStatsView& stats,
                              const SelectJob& job, std::int32_t group, Prepared& prepared) {
  const auto head_dim = static_cast<std::int32_t>(q.shape[2]);
  const std::int32_t means = num_units(job.rows, job.mean_rows);
  prepared.queries = means * group;
  prepared.q.assign(static_cast<std::size_t>(prepared.queries) * head_dim, 0.0f);
  for (std::int32_t query = 0; query < prepared.queries; ++query) {
    float* to = prepared.q.data() + static_cast<std::size_t>(query) * head_dim;
    const std::int32_t first = query / group * job.mean_rows;
    const std::int32_t count = std::min(job.mean_rows, job.rows - first);
    const float scale = sm_scale / static_cast<float>(count);
    for (std::int32_t row = job.row + first; row < job.row + first + count; ++row) {
      const float* from = static_cast<const float*>(q.data) + row * q.strides[0] +
                          (std::int64_t{job.head} * group + query % group) * q.strides[1];
      for (std::int32_t d = 0; d < head_dim; ++d) to[d] += from[d] * scale;
    }
  }
  prepared.score_rows = job.policy->score == SelectScore::kMass ? prepared.queries : 1;
  prepared.q_parts.clear();
  prepared.code_queries.clear();
  if (job.policy->stat == abi::StatKind::kCodes) {
    for (std::int32_t g = 0; g < prepared.queries; ++g) {
      prepared.code_queries.push_back(
          code_query(stats.codes[job.head], prepared.q.data() + static_cast<std::size_t>(g) * head_dim));
    }
  } else if (job.policy->stat == abi::StatKind::kLocalCodes) {
    for (std::int32_t i = 0; i < prepared.queries * abi::kCodeChannels; ++i) {
      const std::int32_t channel = abi::local_channel(i % abi::kCodeChannels, head_dim, stats.rotary_dim);
      prepared.q_parts.push_back(prepared.q[static_cast<std::size_t>(i / abi::kCodeChannels * head_dim + channel)]);
    }
  }
  if (job.policy->score != SelectScore::kBound) return;
  prepared.q_parts.resize(2 * prepared.q.size());
  for (std::size_t i = 0; i < prepared.q.size(); ++i) {
    const std::size_t at = 2 * (i - i % head_dim) + i % head_dim;
    prepared.q_parts[at] = std::max(prepared.q[i], 0.0f);
    prepared.q_parts[at + head_dim] = std::min(prepared.q[i], 0.0f);
  }
}

Status SelectWorkspace::select(const TensorView& q, float sm_scale, const abi::KvPoolView& pool,
                               const abi::PageStatsView& stats, std::span<const SelectJob> jobs, ThreadPool& threads) {
  if (q.rank != 3 || q.dtype != DType::kF32 || q.strides[2] != 1 || q.shape[2] % 16 != 0 || q.shape[2] > kMaxHeadDim) {
    return invalid_argument(
        "queries for selection must be f32 [rows, heads, head_dim], head_dim a multiple of 16 up to {}", kMaxHeadDim);
  }
  if (stats.num_heads < 1 || q.shape[1] % stats.num_heads != 0 || stats.head_dim != q.shape[2]) {
    return invalid_argument("statistics of {} KV heads of {} for {} query heads of {}", stats.num_heads, stats.head_dim,
                            q.shape[1], q.shape[2]);
  }
  FOVEA_RETURN_IF_ERROR(check_keys_readable(pool, stats.head_dim));
  const auto group = static_cast<std::int32_t>(q.shape[1] / stats.num_heads);
  if (prepared_.size() < jobs.size()) prepared_.resize(jobs.size());
  scratch_.resize(static_cast<std::size_t>(threads.size()));
  struct Piece {
    std::size_t job;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  std::int64_t num_scores = 0;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    FOVEA_RETURN_IF_ERROR(check_job(jobs[j], q, pool, stats, stats.num_heads));
    prepare(q, sm_scale, stats, jobs[j], group, prepared_[j]);
    prepared_[j].scores_begin = num_scores;
    const auto units = static_cast<std::int64_t>(jobs[j].units.size());
    num_scores += units * prepared_[j].score_rows;
    for (std::int64_t begin = 0; begin < units; begin += kUnitsPerPiece) {
      pieces.push_back({j, begin, std::min(units, begin + kUnitsPerPiece)});
    }
  }
  scores_.resize(static_cast<std::size_t>(num_scores));
  threads.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      const SelectJob& job = jobs[piece.job];
      const Prepared& made = prepared_[piece.job];
      const ScoreArgs args{job.policy,
                           made.q.data(),
                           made.q_parts.data(),
                           made.code_queries.empty() ? nullptr : made.code_queries.data(),
                           made.queries,
                           job.head,
                           stats.head_dim,
                           job.tokens,
                           job.pages,
                           &pool,
                           &stats,
                           job.seed};
      score_units(
          args,
          job.units.subspan(static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.end - piece.begin)),
          scores_.data() + made.scores_begin + piece.begin, static_cast<std::int64_t>(job.units.size()));
    }
  });
  threads.parallel_for(
      static_cast<std::int64_t>(jobs.size()), 1, [&](std::int64_t begin, std::int64_t end, int worker) {
        for (std::int64_t j = begin; j < end; ++j) {
          const SelectJob& job = jobs[static_cast<std::size_t>(j)];
          float* scores = scores_.data() + prepared_[static_cast<std::size_t>(j)].scores_begin;
          if (job.policy->score == SelectScore::kMass) {
            join_masses(scores, prepared_[static_cast<std::size_t>(j)].queries,
                        static_cast<std::int64_t>(job.units.size()));
          }
          choose_units(job.units, {scores, job.units.size()}, job.rule, job.tokens,
                       scratch_[static_cast<std::size_t>(worker)], job.chosen, job.num_candidates, job.candidates);
        }
      });
  return ok_status();
}

}  // namespace fovea::cpu
