// `fovea doctor`: what this machine is (or, with --server, how a server is: doctor_server.cc), which SIMD targets and
// GPUs run on it, how much memory is left, what is missing.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "jit/compiler.h"
#include "jit/host_compiler.h"
#include "machine/findings.h"
#include "machine/machine.h"

namespace fovea::app {
namespace {

struct DoctorState {
  std::string json;
  std::string server;
  std::string ca_file;
  std::vector<std::string> api_keys;
};

std::vector<Finding> simd_findings(const Machine& machine) {
  std::vector<Finding> findings;
  const bool avx2 = has_feature(machine, "avx2") && has_feature(machine, "fma") && has_feature(machine, "f16c");
  const bool avx512 = has_feature(machine, "avx512f") && has_feature(machine, "avx512bw");
  findings.push_back({"SIMD avx512", avx512 ? "yes" : "no", avx512 ? "" : "this CPU lacks avx512f or avx512bw"});
  findings.push_back({"SIMD avx2", avx2 ? "yes" : "no", avx2 ? "" : "this CPU lacks avx2, fma or f16c"});
  findings.push_back({"SIMD scalar", "yes", avx2 ? "" : "the only target here; expect a tenth of the speed"});
  const bool bf16 = has_feature(machine, "avx512_bf16");
  findings.push_back({"bf16 dot products", bf16 ? "yes" : "no", bf16 ? "" : "bf16 is widened to fp32 first"});
  const bool amx = has_feature(machine, "amx_bf16");
  findings.push_back({"AMX", amx ? "yes" : "no", amx ? "oneDNN uses it" : ""});
  return findings;
}

std::vector<Finding> resource_findings(const Machine& machine) {
  std::vector<Finding> findings;
  const std::string quota =
      machine.quota_cpus > 0 ? fmt::format("cgroup pays for {}", machine.quota_cpus) : std::string("no cgroup quota");
  findings.push_back(
      {"threads", std::to_string(machine.threads),
       fmt::format("{} CPUs, {} in the affinity mask, {}", machine.logical_cpus, machine.allowed_cpus, quota)});
  findings.push_back({"memory", format_bytes(static_cast<double>(machine.memory_available)) + " free",
                      fmt::format("of the machine's {}", format_bytes(static_cast<double>(machine.memory_bytes)))});
  if (machine.memory_available < (std::int64_t{1} << 30)) {
    findings.push_back({"memory for KV pages", "low", "free at least 1 GiB, or pass --kv-cache-mib"});
  }
  return findings;
}

// What compiles variants for the CPU at run time, and where everything compiled is kept.
std::vector<Finding> compiler_findings() {
  std::vector<Finding> findings;
  const Result<std::string> compiler = jit::find_host_compiler();
  findings.push_back({"C++ compiler", compiler.ok() ? "yes" : "no",
                      compiler.ok() ? *compiler + ", for own variants on the CPU" : compiler.status().message()});
  const jit::CacheUse use = jit::cache_use(jit::default_cache_folder());
  findings.push_back({"kernel cache", use.folder.empty() ? "off" : fmt::format("{} kernels", use.num_entries),
                      use.folder.empty()
                          ? "neither FOVEA_CACHE_DIR nor HOME is set: every process compiles its kernels"
                          : fmt::format("{} of {} in {}", format_bytes(static_cast<double>(use.bytes)),
                                        format_bytes(static_cast<double>(jit::cache_limit_bytes())), use.folder)});
  if (!use.folder.empty() && !use.can_write) {
    findings.push_back({"kernel cache", "not writable", "let FOVEA_CACHE_DIR name a folder that can be written"});
  }
  return findings;
}

nlohmann::json checks_json(const std::vector<Finding>& findings) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Finding& f : findings) checks.push_back({{"check", f.what}, {"state", f.state}, {"note", f.advice}});
  return checks;
}

void print_findings(const std::vector<Finding>& findings) {
  for (const Finding& f : findings)
    fmt::print("{:<20} {}\n", f.what, f.advice.empty() ? f.state : fmt::format("{:<14} {}", f.state, f.advice));
}

int run_doctor_server(const DoctorState& state) {
  bool well = false;
  const auto findings = server_findings(state.server, state.api_keys.empty() ? std::string() : state.api_keys.front(),
                                        state.ca_file, &well);
  if (!findings.ok()) return fail(findings.status());
  if (state.json.empty()) {
    print_findings(*findings);
  } else {
    const nlohmann::json document = {{"server", state.server}, {"checks", checks_json(*findings)}};
    if (const Status status = write_output(state.json, document.dump() + "\n"); !status.ok()) return fail(status);
  }
  return well ? kExitOk : kExitFailure;
}

int run_doctor(const DoctorState& state) {
  if (!state.server.empty()) return run_doctor_server(state);
  if (!state.ca_file.empty()) return fail(invalid_argument("--ca-file is for --server https://.., which is not given"));
  const Machine machine = read_machine();
  std::vector<Finding> findings = simd_findings(machine);
  for (Finding& finding : resource_findings(machine)) findings.push_back(std::move(finding));
  for (Finding& finding : cuda_findings()) findings.push_back(std::move(finding));
  for (Finding& finding : compiler_findings()) findings.push_back(std::move(finding));
  if (!state.json.empty()) {
    const nlohmann::json document = {{"machine", machine_json(machine)}, {"checks", checks_json(findings)}};
    const Status status = write_output(state.json, document.dump() + "\n");
    return status.ok() ? kExitOk : fail(status);
  }
  fmt::print("{}\n{}{}\nL2 {}, L3 {}\nfeatures:", machine.cpu, machine.kernel,
             machine.hypervisor == "yes" ? ", in a virtual machine" : "",
             format_bytes(static_cast<double>(machine.l2_bytes)), format_bytes(static_cast<double>(machine.l3_bytes)));
  for (const std::string& feature : machine.features) fmt::print(" {}", feature);
  fmt::print("\n\n");
  print_findings(findings);
  fmt::print("\nEnvironment (besides the variables of flags, see --help):\n");
  for (const EnvEntry& entry : env_table()) {
    fmt::print("  {:<22} {} (now {})\n", entry.name, entry.meaning,
               env_string(entry.id).empty() ? "unset" : env_string(entry.id));
  }
  return kExitOk;
}

}  // namespace

RunFunction declare_doctor(Options& options) {
  auto state = std::make_shared<DoctorState>();
  options.add("server", state->server,
              "Look at the server at this URL instead of at this machine; 1 where it is not well");
  options.add("api-key", state->api_keys, "The server's key");
  options.add("ca-file", state->ca_file,
              "Trust the authorities of this file (PEM) for an https URL, instead of SSL_CERT_FILE's or the system's");
  options.add("json", state->json, "Write the findings as JSON here; - is stdout");
  options.examples(
      "  fovea doctor\n  fovea doctor --server http://127.0.0.1:8000\n  "
      "fovea doctor --server https://llm.example --ca-file ca.pem\n  fovea doctor --json - | jq .machine.features");
  return [state] { return run_doctor(*state); };
}

}  // namespace fovea::app
