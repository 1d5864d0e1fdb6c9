// BenchReport: the rows every `fovea bench` suite makes, as one table for people and one JSON document for scripts.
// Used by the files of this folder.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fovea/status.h"

namespace fovea {

struct BenchRow {
  std::string suite;   // "decode", "plan", ...
  std::string name;    // the case, for example "B64 S4096 32/8"
  std::string metric;  // "read", "time", ...
  double value = 0.0;
  std::string unit;                  // "GB/s", "us", ...
  std::optional<double> limit;       // what the machine could reach, in the same unit
  std::string peer;                  // who was measured beside us, or empty
  std::optional<double> peer_value;  // in the same unit
  bool smaller_is_better = false;    // times: the share of the limit is limit / value

  std::optional<double> share() const;  // of the limit, 1 is the limit itself
};

class BenchReport {
 public:
  // key: "cpu", "threads", "read_gb_per_s", ...
  void set_machine(std::string key, std::string value) { machine_.emplace_back(std::move(key), std::move(value)); }
  void set_machine(std::string key, double value);
  void add(BenchRow row) { rows_.push_back(std::move(row)); }
  const std::vector<BenchRow>& rows() const { return rows_; }

  std::string table() const;
  // {"machine":{..},"rows":[{"suite","case","metric","value","unit","limit","share","peer","peer_value"}]}; absent:
  // null.
  std::string json() const;
  // Prints the table on stdout, or with json_path "-" the JSON alone; another path: table on stdout, JSON in the file.
  Status emit(const std::string& json_path) const;

 private:
  std::vector<std::pair<std::string, std::string>> machine_;  // values are JSON text
  std::vector<BenchRow> rows_;
};

}  // namespace fovea
