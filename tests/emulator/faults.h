// Faults that are planted in the kernels, one at a time, to show that the emulator's tests catch them. A fault is a
// piece of a kernel's source and what stands there instead while a launch asks for it; other launches run what was
// there.
#pragma once

#include <string>
#include <vector>

namespace fovea::emulator_test {

struct Fault {
  const char* name;
  const char* file;
  const char* original;     // stands once in the file
  const char* replacement;  // FAULT stands for whether the launch has the fault
  const char* instantiation;
  const char* second_original = nullptr;  // where a fault is in two places of the file
  const char* second_replacement = nullptr;
};

const std::vector<Fault>& faults();

// The number that launches ask for it by (simt::Launch::fault).
inline int number_of(const Fault& fault) { return static_cast<int>(&fault - faults().data()) + 1; }

// The file's text with questions where its faults are. Throws std::runtime_error where a piece is not there once.
std::string plant_faults(const std::string& file, std::string text);

}  // namespace fovea::emulator_test
