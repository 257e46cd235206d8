// Account: the exact two-way match of a source's tensors with the parameters that a reload
// replaces. Private to make_plan. A pure computation; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "reload/plan.h"
#include "reload/scope.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

class Account {
 public:
  Account(const storage::Registry& registry, const Source& source, const PlanOptions& options,
          const Selection& selection);

  // One feed for each parameter. Errors: all defects as one, the first few spelled out.
  Result<std::vector<ParameterFeed>> run();
  // What is worth telling and no defect.
  std::vector<std::string> take_notes() { return std::move(notes_); }

 private:
  using ParameterIndex = std::size_t;
  void match_source_tensor(std::size_t index);
  void match_unknown(const SourceTensor& tensor);
  bool match_form(const SourceTensor& tensor, const storage::PublishedTensor& published);
  bool match_alias(std::size_t index, ParameterIndex parameter);
  void match_rows(std::size_t index, const storage::PublishedTensor& published);
  const std::string& published_name(ParameterIndex parameter, std::uint64_t at) const;
  void match_parameter(ParameterIndex parameter);
  Status match_digests();
  void match_part_digest(const std::string& name, ParameterIndex parameter, base::Digest digest);
  void defect(ErrorCode code, std::string text);
  std::string nearest_parameters(std::string_view name) const;
  std::string nearest_sources(std::string_view name) const;
  bool will_be_spelled() const;
  const storage::ParameterSpec& spec(ParameterIndex i) const { return registry_.parameters()[i]; }

  const storage::Registry& registry_;
  const Source& source_;
  const PlanOptions& options_;
  const Selection& selection_;
  std::vector<ParameterFeed> feeds_;
  // By parameter: the source tensor that arrived first.
  std::vector<std::optional<std::size_t>> first_source_;
  std::vector<std::string> notes_;
  std::vector<std::string> defects_;
  std::size_t defect_count_ = 0;
  ErrorCode first_code_ = ErrorCode::kMismatch;
};

}  // namespace holdfast::reload
