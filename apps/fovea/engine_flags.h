// The engine's options as flags, for every command that makes an Engine: serve, generate, chat, eval.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine.h"
#include "options.h"

namespace fovea {
class ProcessGroup;
}

namespace fovea::app {

// The selection policies there are, for help and errors.
std::string select_policy_names();

// Sets kv_dtype and kv_rotated by a name of --kv-dtype; false where it is none.
bool set_kv_type(std::string_view name, EngineOptions* options);

struct EngineFlags {
  EngineOptions options;

  void declare(Options& table);
  // For a command that has one request at a time: --help leaves out what only several need.
  void declare_for_one(Options& table);
  // Makes the engine, and with --tp starts the processes that compute with it; a Status names the flag that is wrong,
  // and what to do about a model of another kind.
  Result<std::unique_ptr<Engine>> create();
  // The flags that differ from the defaults, as arguments for a child process.
  std::vector<std::string> arguments() const;
  // Whether --tp asks for several processes, which create() starts.
  bool starts_ranks() const { return tp_ > 1; }
  // `options` with what other flags say.
  EngineOptions resolved() const;

 private:
  // A process that is not rank 0 of --tp: its exit code.
  std::optional<int> follow();

  std::int32_t tp_ = 1;
  std::shared_ptr<ProcessGroup> group_;  // of --tp
  std::string kv_dtype_ = "bf16";
  std::int32_t kv_cache_mib_ = 0;
  double kv_spill_gib_ = 0.0;
  double kv_store_gib_ = 16.0;
};

}  // namespace fovea::app
