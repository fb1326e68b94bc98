// Compares the wire contracts that driver/proto defines with the ones that upstream publishes as Go packages: what both
// define must be the same, name by name and number by number.
package proto

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/reflect/protoreflect"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const folder = "../../driver/proto"

func TestCSIIsTheSpecifications(t *testing.T) {
	absent := compare(t, "csi.proto", (&csi.ProbeRequest{}).ProtoReflect().Descriptor().ParentFile())
	// Nothing of these is served or asked.
	for _, name := range []string{"csi.v1.GroupController", "csi.v1.SnapshotMetadata"} {
		if !slices.Contains(absent, name) {
			t.Errorf("%s is defined now: say so in csi.proto and take it out of this list", name)
		}
	}
}

func TestRegistrationIsKubelets(t *testing.T) {
	upstream := (&registration.PluginInfo{}).ProtoReflect().Descriptor().ParentFile()
	if absent := compare(t, "pluginregistration.proto", upstream); len(absent) != 0 {
		t.Errorf("not defined here: %v", absent)
	}
}

// compare fails the test for every difference in what both define, and returns what only upstream defines.
func compare(t *testing.T, name string, upstream protoreflect.FileDescriptor) []string {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{folder}}),
	}
	files, err := compiler.Compile(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := describe(files[0]), describe(upstream)
	if len(ours) == 0 || len(theirs) == 0 {
		t.Fatalf("%s: %d definitions here, %d upstream", name, len(ours), len(theirs))
	}
	for _, definition := range slices.Sorted(maps.Keys(ours)) {
		parts, there := theirs[definition]
		if !there {
			t.Errorf("%s is not defined upstream", definition)
			continue
		}
		for part, meaning := range ours[definition] {
			if parts[part] != meaning {
				t.Errorf("%s: %s is %q here and %q upstream", definition, part, meaning, parts[part])
			}
		}
		for part, meaning := range parts {
			if _, there := ours[definition][part]; !there {
				t.Errorf("%s lacks %s, upstream %q", definition, part, meaning)
			}
		}
	}
	var absent []string
	for _, definition := range slices.Sorted(maps.Keys(theirs)) {
		if _, there := ours[definition]; !there {
			absent = append(absent, definition)
		}
	}
	t.Logf("%s: %d definitions are the same; only upstream: %v", name, len(ours), absent)
	return absent
}

// describe gives each message, enum and service its parts, each part in words that are equal when the bytes on the wire
// are.
func describe(file protoreflect.FileDescriptor) map[string]map[string]string {
	all := map[string]map[string]string{}
	var messages func(protoreflect.MessageDescriptors)
	enums := func(enums protoreflect.EnumDescriptors) {
		for i := range enums.Len() {
			parts := map[string]string{}
			values := enums.Get(i).Values()
			for j := range values.Len() {
				parts[string(values.Get(j).Name())] = fmt.Sprint(values.Get(j).Number())
			}
			all[string(enums.Get(i).FullName())] = parts
		}
	}
	messages = func(messagesThere protoreflect.MessageDescriptors) {
		for i := range messagesThere.Len() {
			message := messagesThere.Get(i)
			parts := map[string]string{}
			for j := range message.Fields().Len() {
				field := message.Fields().Get(j)
				parts[string(field.Name())] = describeField(field)
			}
			all[string(message.FullName())] = parts
			enums(message.Enums())
			messages(message.Messages())
		}
	}
	enums(file.Enums())
	messages(file.Messages())
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		parts := map[string]string{}
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			parts[string(method.Name())] = fmt.Sprintf("(%s, stream %t) returns (%s, stream %t)",
				method.Input().FullName(), method.IsStreamingClient(), method.Output().FullName(), method.IsStreamingServer())
		}
		all[string(service.FullName())] = parts
	}
	return all
}

func describeField(field protoreflect.FieldDescriptor) string {
	kind := field.Kind().String()
	switch field.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		kind = string(field.Message().FullName())
	case protoreflect.EnumKind:
		kind = string(field.Enum().FullName())
	}
	choice := ""
	if oneof := field.ContainingOneof(); oneof != nil {
		choice = " of " + string(oneof.Name())
	}
	return fmt.Sprintf("%d %s %s packed %t%s", field.Number(), field.Cardinality(), kind, field.IsPacked(), choice)
}
